"""The engines that are compared, one file each; ``protocol.py`` says what such a file holds."""

# In the order of the table. A name is a module of this folder, dots and dashes as underscores.
PEERS = (
    "tidemill",
    "llama.cpp",
    "llama.cpp-server",
    "ik_llama.cpp",
    "openvino",
    "vllm",
    "transformers",
    "mistralrs",
    "ctranslate2",
    "onnxruntime-genai",
)


def module_of(name: str) -> str:
    """The module that measures the peer ``name``."""
    return "peers." + name.replace(".", "_").replace("-", "_")
