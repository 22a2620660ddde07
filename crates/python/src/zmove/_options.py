"""The options of a transfer and of a job. A test generates this file from the description of the API."""

from typing import Iterable, Literal, TypedDict


class Options(TypedDict, total=False):
    """The options of ``zmove submit``, with ``_`` instead of ``-``."""

    acls: bool
    allow_empty: bool
    archive: bool
    at: str
    checksum: bool
    chown: str
    cipher: Literal["tls", "none"]
    cluster: str
    congestion: str
    deadline: str
    delete: bool
    delta: Literal["auto", "always", "never"]
    direct: Literal["auto", "on", "off"]
    durability: Literal["none", "end", "file"]
    every: str
    exclude: Iterable[str]
    files_from: str
    filter_from: Iterable[str]
    force: bool
    from0: bool
    group: bool
    groupmap: str
    hard_links: bool
    ignore_errors: bool
    ignore_existing: bool
    include: Iterable[str]
    inplace: bool
    io_engine: Literal["auto", "threads", "uring"]
    label: str
    limit: str
    links: bool
    manifest: str
    max_bytes: str
    max_delete: int
    max_entries: int
    max_size: str
    min_size: str
    no_A: bool
    no_D: bool
    no_H: bool
    no_S: bool
    no_X: bool
    no_g: bool
    no_o: bool
    no_p: bool
    no_preserve: Iterable[
        Literal["mode", "times", "atime", "owner", "xattr", "acl", "links", "specials", "devices", "holes", "all"]
    ]
    no_t: bool
    no_wait: bool
    notify: str
    numeric_ids: bool
    omit_dir_times: bool
    one_file_system: bool
    owner: bool
    perms: bool
    preserve: Iterable[
        Literal["mode", "times", "atime", "owner", "xattr", "acl", "links", "specials", "devices", "holes", "all"]
    ]
    priority: int
    proofs: str
    require_mount: Iterable[str]
    rescan: str
    rest: str
    sparse: Literal["auto", "zeros", "never"]
    ssh: bool
    ssh_ports: str
    streams: int
    strict_metadata: bool
    submission_id: str
    timeout: str
    times: bool
    trace: str
    transport: Literal["auto", "tcp", "quic"]
    update: bool
    usermap: str
    verify: Literal["wire", "media"]
    via: Literal["auto", "direct", "ssh"]
    watch: bool
    xattrs: bool


#: Options with a path of this host.
FILES = frozenset(["files_from", "filter_from", "manifest", "proofs", "trace"])
