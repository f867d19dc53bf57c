"""Other people's clients against one server, from before its model is there until after it was told to stop.

Once everything is imported it says "ready" and reads one line: the server's address, and a key that it knows. It exits
with the number of broken claims.
"""

import sys

import langchain_chat
import openai_answers
import openai_errors
from harness import Server, run

print("ready", flush=True)
SERVER = Server(*sys.stdin.readline().split())
CLAIMS = openai_errors.BEFORE_READY + openai_answers.CLAIMS + langchain_chat.CLAIMS + openai_errors.CLAIMS
sys.exit(run(CLAIMS + openai_errors.AT_THE_END, SERVER))
