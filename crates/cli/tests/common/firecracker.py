#!/usr/bin/env python3
"""A VMM that speaks Firecracker's API and has no guest: what it prints goes on from a snapshot."""
import ctypes, fcntl, json, mmap, os, socket, struct, sys, threading, time

PAGE, PAGES, TOUCHED = 4096, 64, 8
paused, kept = threading.Event(), []


def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def tick(nonce):
    n = 0
    while not paused.is_set():
        n += 1
        print(f"tick {nonce} {n}", flush=True)
        time.sleep(0.002)


def create(body):
    with open(body["mem_file_path"], "wb") as ram:
        ram.write(b"".join(bytes([n + 1]) * PAGE for n in range(PAGES)))
    with open(body["snapshot_path"], "w") as state:
        state.write(nonce)


def by_file(path):
    with open(path, "rb") as file:
        ram = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    return lambda page: ram[page * PAGE]


def by_handler(path):
    """As of userfaultfd(2): the descriptor and where the RAM is go to the other process."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(fd, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))
    ram = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    at = ctypes.addressof(ctypes.c_char.from_buffer(ram))
    fcntl.ioctl(fd, 0xC020AA00, struct.pack("QQQQ", at, PAGES * PAGE, 1, 0))
    region = {"base_host_virt_addr": at, "size": PAGES * PAGE, "offset": 0, "page_size": PAGE, "page_size_kib": PAGE}
    handler = socket.socket(socket.AF_UNIX)
    handler.connect(path)
    socket.send_fds(handler, [json.dumps([region]).encode()], [fd])
    kept.append(ram)
    return lambda page: ctypes.string_at(at + page * PAGE, 1)[0]


def load(body):
    with open(body["snapshot_path"]) as state:
        nonce = state.read()
    time.sleep(0.05)
    backend = body["mem_backend"]
    read = {"File": by_file, "Uffd": by_handler}[backend["backend_type"]](backend["backend_path"])

    def guest():
        time.sleep(0.02)
        assert [read(page) for page in range(3, 3 + TOUCHED)] == list(range(4, 4 + TOUCHED))
        tick(nonce)

    threading.Thread(target=guest, daemon=True).start()


def serve(path):
    api = socket.socket(socket.AF_UNIX)
    api.bind(path)
    api.listen()
    client, _ = api.accept()
    stream = client.makefile("rb")
    while line := stream.readline():
        length = 0
        while (header := stream.readline().strip()):
            name, value = header.split(b":", 1)
            length = int(value) if name.lower() == b"content-length" else length
        body, request = stream.read(length), line.split()[1].decode()
        try:
            {"/vm": lambda _: paused.set(), "/snapshot/create": create, "/snapshot/load": load}[request](json.loads(body))
            client.sendall(b"HTTP/1.1 204 \r\nServer: played\r\n\r\n")
        except Exception as error:
            said = json.dumps({"fault_message": str(error)}).encode()
            client.sendall(b"HTTP/1.1 400 \r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
            sys.stdout.flush()
            os._exit(148)


if "--version" in sys.argv:
    sys.exit(print("Firecracker v1.16.0"))
if option("--config-file"):
    nonce = os.urandom(8).hex()
    threading.Thread(target=tick, args=[nonce], daemon=True).start()
if option("--api-sock"):
    serve(option("--api-sock"))
time.sleep(1000)
