"""What llama-server does on its Unix socket, without a model: run as a process by a test.

It notes its command line beside itself, is busy loading at first, and answers each prompt with as
many tokens as were asked for; a prompt of the token 0 is an error, the model "broken" ends it.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer

Path(__file__).with_name("arguments.json").write_text(json.dumps(sys.argv[1:]))
asked = Path(__file__).with_name("requests.jsonl")
if sys.argv[sys.argv.index("-m") + 1] == "broken":
    sys.exit("no such architecture")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    loading = 2  # times that it says so

    def do_GET(self):
        Handler.loading -= 1
        self.answer(503 if Handler.loading >= 0 else 200, {"status": "?"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with asked.open("a") as file:
            file.write(json.dumps(body) + "\n")
        prompts = body["prompt"]
        if prompts == [[0]]:
            self.answer(400, {"error": "token 0 is not taken"})
            return
        answers = [{"tokens_predicted": body["n_predict"]} for _ in prompts]
        self.answer(200, answers if len(answers) > 1 else answers[0])

    def answer(self, status, body):
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self):
        return "unix"


UnixStreamServer(sys.argv[sys.argv.index("--host") + 1], Handler).serve_forever()
