// SPDX-License-Identifier: Apache-2.0
#include "engine/answer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <numeric>

namespace rvv_runner {

Answer::Answer(uint64_t id, Request request, int64_t longest, const Tokenizer* tokenizer)
    : id_(id),
      request_(std::move(request)),
      key_(request_.tokens),
      longest_(longest),
      sampler_(request_.sampling),
      text_(tokenizer, request_.sampling.stop, request_.continues),
      said_(request_.tokens) {
  for (const PromptPicture& each : request_.pictures) {
    for (int64_t i = 0; i < each.tokens; ++i) key_[each.first + i] = each.picture->Key(i);
    pictures_.push_back({each.first, each.first + each.tokens, each.picture, std::nullopt});
  }
  if (request_.grammar) grammar_ = request_.grammar->Begin();
  ended_.prompt_tokens = std::ssize(request_.tokens);
}

void Answer::Start(int64_t sequence, int64_t ready) {
  sequence_ = sequence;
  read_ = ready;
  ended_.cached_tokens = ready;
  ended_.queue_seconds = std::chrono::duration<double>(Clock::now() - submitted_).count();
}

std::pair<Answer::Tokens::const_iterator, Answer::Tokens::const_iterator> Answer::Chunk(
    int64_t most) const {
  const auto first = request_.tokens.begin() + read_;
  return {first, first + std::min(most, unread())};
}

const PreparedPicture* Answer::Unseen(int64_t most) const {
  for (const Seen& each : pictures_) {
    if (each.first >= read_ + most) break;
    if (each.end > read_ && !each.states) return each.picture.get();
  }
  return nullptr;
}

void Answer::See(tvm::runtime::Tensor states, double seconds) {
  ended_.prefill_seconds.push_back(seconds);
  std::ranges::find_if(pictures_, [&](const Seen& each) {
    return each.end > read_ && !each.states;
  })->states = std::move(states);
}

std::vector<Shown> Answer::ShownIn(int64_t tokens, int64_t row) const {
  std::vector<Shown> shown;
  for (const Seen& each : pictures_) {
    const int64_t first = std::max(each.first, read_), end = std::min(each.end, read_ + tokens);
    if (first < end) {
      shown.push_back({row + first - read_, *each.states, first - each.first, end - first});
    }
  }
  return shown;
}

void Answer::Read(int64_t tokens, double seconds) {
  read_ += tokens;
  std::erase_if(pictures_, [&](const Seen& each) { return each.end <= read_; });
  ended_.prefill_seconds.push_back(seconds);
}

void Answer::Found(int64_t tokens) {
  read_ += tokens;
  ended_.cached_tokens += tokens;
  in_files_ = tokens > 0;
}

void Answer::Score(const std::vector<std::vector<float>>& rows) {
  const Tokens& prompt = request_.tokens;
  if (read_ == 0)
    piece_.prompt.push_back({prompt[0], std::numeric_limits<double>::quiet_NaN(), {}});
  const auto first = static_cast<size_t>(read_) + 1;
  for (size_t i = 0; i < rows.size() && first + i < prompt.size(); ++i) {
    const int64_t top = request_.sampling.top_logprobs;
    piece_.prompt.push_back(LogprobOf(rows[i], prompt[first + i], top));
  }
}

void Answer::AddStates(const std::vector<double>& sum, bool unit) {
  unit_ = unit;
  states_.resize(sum.size());
  std::transform(sum.begin(), sum.end(), states_.begin(), states_.begin(), std::plus<>());
}

std::optional<Finish> Answer::Next(const std::vector<float>& logits) {
  if (request_.on_logits) request_.on_logits(logits);
  const int32_t token = Choose(logits);
  said_.push_back(token);
  piece_.tokens.push_back(token);
  ++ended_.answer_tokens;
  if (std::count(request_.stop.begin(), request_.stop.end(), token) > 0) return Finish::kStop;
  if (request_.sampling.top_logprobs >= 0) {
    piece_.logprobs.push_back(LogprobOf(logits, token, request_.sampling.top_logprobs));
  }
  Tell(text_.Next(token));
  ended_.cut = text_.stopped();
  if (ended_.cut || (grammar_ && grammar_->done())) return Finish::kStop;
  if (ended_.prompt_tokens + ended_.answer_tokens == longest_) return Finish::kLength;
  return std::nullopt;
}

Answer::Tokens Answer::Guess(int64_t most) const {
  return GuessNext(said_, std::min({most, guesses_.tokens(), longest_ - std::ssize(said_)}));
}

int32_t Answer::Choose(const std::vector<float>& logits) {
  if (!grammar_) return sampler_.Next(logits);
  std::vector<float> allowed = logits;
  grammar_->Mask(&allowed);
  const int32_t token = sampler_.Next(allowed);
  grammar_->Accept(token);
  return token;
}

void Answer::Tell(const std::string& text) {
  piece_.text += text;
  // Hold tokens back until their text is complete.
  if (piece_.text.empty() && !text_.whole()) return;
  const Piece piece = std::exchange(piece_, Piece());
  if (request_.on_piece) request_.on_piece(piece);
}

void Answer::End(Finish finish, const std::string& error) {
  ended_.finish = finish;
  ended_.error = error;
  // The sum has the direction of the mean.
  const double square = std::inner_product(states_.begin(), states_.end(), states_.begin(), 0.0);
  const double length = unit_ && square > 0 ? std::sqrt(square) : 1.0;
  for (const double each : states_) ended_.embedding.push_back(static_cast<float>(each / length));
  try {
    if (finish != Finish::kError) {
      piece_.text += text_.Finish();
      const bool news = !piece_.tokens.empty() || !piece_.text.empty() || !piece_.prompt.empty();
      if (request_.on_piece && news) request_.on_piece(piece_);
    }
  } catch (const std::exception& thrown) {
    ended_.finish = Finish::kError;
    ended_.error = thrown.what();
  }
  try {
    if (request_.on_finish) request_.on_finish(ended_);
  } catch (const std::exception&) {
    // There is no other callback that could report this.
  }
}

}  // namespace rvv_runner
