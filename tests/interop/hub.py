"""The cache of huggingface_hub and that of zeroth are one: what either downloads from hf://org/tiny,
the other finds there, without a download of its own.

    pip install huggingface_hub
    go build -o zeroth ./cmd/zeroth
    python tests/interop/hub.py ./zeroth MODEL WORK

MODEL is a Hugging Face folder with a tokenizer, for example model/ of a run; WORK is a new folder. A
server here answers as the Hub does. The last check has two processes of zeroth and one of Python
download at the same time.
"""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse

ZEROTH, MODEL, WORK = map(os.path.abspath, sys.argv[1:4])
COMMIT = "c0ffee" * 6 + "c0ff"
FILES = {name: open(os.path.join(MODEL, name), "rb").read() for name in sorted(os.listdir(MODEL))}
got = []  # files of which content was sent
failed = []


def git(b):
    return hashlib.sha1(b"blob %d\0" % len(b) + b).hexdigest()


def large(name):
    return name.endswith(".safetensors")


def described(name, key):
    b = FILES[name]
    lfs = {"lfs": {"oid": hashlib.sha256(b).hexdigest(), "sha256": hashlib.sha256(b).hexdigest(), "size": len(b), "pointerSize": 130}}
    return {key: name, "type": "file", "size": len(b), "blobId": git(b), "oid": git(b)} | (lfs if large(name) else {})


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        name = path.rsplit("/", 1)[-1]
        if path.startswith("/api/models/org/tiny/revision/"):
            self.answer(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": [described(n, "rfilename") for n in FILES]}).encode())
        elif path.startswith("/api/models/org/tiny/tree/"):
            self.answer(200, json.dumps([described(n, "path") for n in FILES]).encode())
        elif name not in FILES or not path.startswith(("/org/tiny/resolve/", "/cdn/")):
            self.answer(404, X_Error_Code="EntryNotFound")
        elif large(name) and not path.startswith("/cdn/"):
            b = FILES[name]
            at = f"http://localhost:{self.server.server_port}/cdn/{name}"  # another host than 127.0.0.1
            self.answer(302, Location=at, X_Repo_Commit=COMMIT, X_Linked_Size=str(len(b)), X_Linked_Etag=f'"{hashlib.sha256(b).hexdigest()}"')
        else:
            if self.command == "GET":
                got.append(name)
            if large(name) and self.headers.get("Authorization"):
                failed.append("the token followed a redirect")
            self.answer(200, FILES[name], X_Repo_Commit=COMMIT, ETag=f'"{git(FILES[name])}"')


def run(*command, cache):
    env = os.environ | {"HF_HOME": cache, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_TOKEN": "hf_test"}
    return subprocess.Popen(command, env=env, cwd=WORK, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def python(cache):
    return run(sys.executable, "-c", "import huggingface_hub as h; print(h.snapshot_download('org/tiny'))", cache=cache)


def zeroth(cache):
    return run(ZEROTH, "model", "hf://org/tiny", cache=cache)


def show(what, processes, most):
    """Waits for processes and compares the number of files sent."""
    for p in processes:
        said = p.communicate()[0]
        if p.returncode:
            failed.append(what)
            print(said)
    print(f"{what}: {len(got)} files sent, at most {most}")
    if len(got) > most:
        failed.append(f"{what}: {got}")
    got.clear()


os.makedirs(WORK)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
for first, second, name in [(python, zeroth, "Python, then zeroth"), (zeroth, python, "zeroth, then Python")]:
    cache = os.path.join(WORK, name.split(",")[0])
    show(name.split(",")[0] + " downloads", [first(cache)], len(FILES))
    show(name, [second(cache)], 0)
cache = os.path.join(WORK, "together")
show("all at the same time", [zeroth(cache), python(cache), zeroth(cache)], len(FILES))
sys.exit("\n".join(["FAILED", *failed]) if failed else 0)
