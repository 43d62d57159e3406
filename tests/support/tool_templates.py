# SPDX-License-Identifier: Apache-2.0
"""Chat templates that write calls of tools as published models do."""

from __future__ import annotations

# Qwen's and Hermes' way: a marker around each call.
HERMES = (
    "{%- if tools %}<|start|>system\nYou may call:\n"
    "{%- for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|end|>\n{% endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}<|start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{%- else %}<|start|>{{ m.role }}\n{{ m.content }}{% endif %}"
    "{%- for call in m.tool_calls or [] %}"
    "{%- if not loop.first or m.content %}{{ '\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>"
    "{%- endfor %}<|end|>\n"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# Llama 3's: the call is the whole answer, and there is one.
LLAMA3 = (
    "{% for m in messages %}<|start|>{{ 'ipython' if m.role == 'tool' else m.role }}\n\n"
    "{%- if loop.first and tools %}{{ tools | tojson(indent=4) }}\n\n{% endif %}"
    "{%- if m.tool_calls %}"
    "{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    "{%- set call = m.tool_calls[0].function %}"
    '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}'
    "{%- else %}{{ m.content | trim }}{% endif %}<|end|>"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|start|>assistant\n\n{% endif %}"
)
# Mistral's: a list, with ids of nine letters.
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{%- if m.role == 'user' %}"
    "{%- if tools and loop.last %}"
    "[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ m.content }}[/INST]"
    "{%- elif m.tool_calls %}[TOOL_CALLS] ["
    "{%- for call in m.tool_calls %}"
    "{%- if call.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"
    "{%- set said = call.function | tojson %}"
    '{{ said[:-1] }}, "id": "{{ call.id }}"}{{ ", " if not loop.last }}'
    "{%- endfor %}]<|end|>"
    "{%- elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]"
    "{%- else %} {{ m.content }}<|end|>{% endif %}"
    "{%- endfor %}"
)
# gpt-oss's: a message to the tool, in a channel.
CHANNELS = (
    "{%- for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}<|start|>functions to=assistant<|channel|>commentary<|message|>"
    "{{ m.content }}<|end|>"
    "{%- elif m.tool_calls %}<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}"
    "<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|start|>assistant{% endif %}"
)
CHANNEL_MARKERS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
BY_NAME = {
    "hermes": HERMES,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "magistral": MISTRAL + "{# after <think> and </think> #}",
    "channels": CHANNELS,
}
