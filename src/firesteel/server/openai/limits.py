"""Limits on the counts in a request, far above what clients send; docs/security.md lists them.

Beyond them, one request could keep the server from answering others. The first three hold for a body as a whole and
are checked before it is parsed.
"""

MAX_VALUES = 1 << 20  # separated by commas: token ids of all prompts, for example
MAX_TEXTS = 1 << 17  # names of fields and texts
MAX_CONTAINERS = 1 << 15  # objects and lists
MAX_UNKNOWN_FIELDS = 64
MAX_MESSAGES = 8192  # or input items, those of earlier responses included
MAX_TOOLS = 1024
MAX_DEFINITION_CHARACTERS = 1 << 16  # of the grammar of a custom tool
MAX_METADATA = 64  # pairs
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 1 << 14
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 1 << 14  # of all of them, in both places; compared with the text at every token of a choice
MAX_CHOICES = 1024  # texts of which the answer is one; together they are as long as a grammar
MAX_PROMPT_LOGPROBS = 1 << 18  # entries of an answer: two for each token of the longest prompt
MAX_PATTERN_CHARACTERS = 4096
MAX_GRAMMAR_CHARACTERS = 1 << 16
MAX_SALT_CHARACTERS = 1024
MAX_TOKENS_TO_DECODE = 1 << 18
MAX_CHARACTERS_TO_ENCODE = 4 << 20  # a context of 131,072 tokens has about 600,000
