// SPDX-License-Identifier: Apache-2.0
// A data cache: sets of lines, replacement of the least recently used line, write-back.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cache_line {
  uint64_t number;  // number of the line in memory, plus one; 0: empty
  bool dirty;
};

struct cache {
  uint64_t sets;
  unsigned ways;
  struct cache_line *lines;  // sets, each with the most recently used line first
};

struct eviction {
  bool hit;
  bool written_back;  // the evicted line was dirty
  uint64_t number;    // number of the evicted line
};

// Creates a cache with sizes in bytes; returns false if lines and ways do not divide the size.
static inline bool cache_make(struct cache *cache, uint64_t size, unsigned ways, unsigned line) {
  if (!size || !ways || !line || size % ((uint64_t)ways * line)) return false;
  cache->sets = size / ((uint64_t)ways * line);
  cache->ways = ways;
  cache->lines = calloc(cache->sets * ways, sizeof(*cache->lines));
  return cache->lines != NULL;
}

static inline struct eviction cache_access(struct cache *cache, uint64_t number, bool write) {
  struct cache_line *set = cache->lines + (number % cache->sets) * cache->ways;
  struct cache_line wanted = {number + 1, write};
  struct eviction result = {true, false, 0};
  unsigned at = 0;
  while (at < cache->ways && set[at].number != wanted.number) ++at;
  if (at < cache->ways) {
    wanted.dirty |= set[at].dirty;
  } else {
    at = cache->ways - 1;
    result.hit = false;
    result.written_back = set[at].number && set[at].dirty;
    result.number = set[at].number - 1;
  }
  memmove(set + 1, set, at * sizeof(*set));
  set[0] = wanted;
  return result;
}
