"""Chat templates to choose by name, for models whose files have none.

They restate the published prompt formats of the model families: ChatML, Llama 2, Llama 3, Gemma
and Mistral (instruct, v1). System messages go where the format has a place for them.
"""

from __future__ import annotations

_CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

_LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{{- message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

# The families below have no role for the system message: it goes before the first user message.
_SPLIT_SYSTEM = """\
{%- set system = '' %}
{%- set turns = messages %}
{%- if messages and messages[0].role == 'system' %}
{%- set system = messages[0].content | trim %}
{%- set turns = messages[1:] %}
{%- endif %}
{%- for message in turns %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('after an optional system message, user and assistant must take turns') }}
{%- endif %}
"""

_LLAMA2 = (
    _SPLIT_SYSTEM
    + """\
{%- if message.role == 'user' %}
{{- bos_token + '[INST] ' }}
{%- if loop.first and system %}{{ '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}{% endif %}
{{- message.content | trim + ' [/INST]' }}
{%- else %}
{{- ' ' + message.content | trim + ' ' + eos_token }}
{%- endif %}
{%- endfor %}"""
)

_MISTRAL = (
    "{{- bos_token }}"
    + _SPLIT_SYSTEM
    + """\
{%- if message.role == 'user' %}
{{- '[INST] ' }}
{%- if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}
{{- message.content | trim + ' [/INST]' }}
{%- else %}
{{- ' ' + message.content | trim + eos_token }}
{%- endif %}
{%- endfor %}"""
)

_GEMMA = (
    "{{- bos_token }}"
    + _SPLIT_SYSTEM
    + """\
{{- '<start_of_turn>' + ('user' if message.role == 'user' else 'model') + '\\n' }}
{%- if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}
{{- message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
)

BUILTIN_TEMPLATES: dict[str, str] = {
    "chatml": _CHATML,
    "gemma": _GEMMA,
    "llama2": _LLAMA2,
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
}
