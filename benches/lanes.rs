//! Compares lanes as blocking threads, as zmove runs them, with the same lanes as tokio tasks.
//!
//! Both send the same frames of 4 MiB between buffers of a pool over loopback, in cleartext and with AES-256-GCM in
//! records of 16 KiB, 16 of them per system call. Threads and tasks differ only in how they wait: a thread for each end
//! of a lane, or two runtimes, one per end, with a worker for each core. `TlsLane` is the lane that zmove uses. The
//! forms take turns. The table has the median rate, the range, and the processor time of both ends.
//!
//! `ZMOVE_BENCH_MIB` sets the size of a run (default 1024) and `ZMOVE_BENCH_RUNS` the number of runs (default 5). With
//! `--test`, each form sends one frame per lane, once.

use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384;
use rustls::quic::PacketKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use zmove_transport::{
    Acceptor, Connection, FirstKey, Frame, HostPolicy, Identity, LaneSink, LaneSource, SharedRate,
    SocketConfig, TcpDialer, TlsLane,
};
use zmove_types::{BufferPool, StageClock};
use zmove_wire::{FrameHeader, FrameKind};

fn main() {
    let (frames, runs) = if env::args().any(|word| word == "--test") {
        (1, 1)
    } else {
        (
            setting("ZMOVE_BENCH_MIB", 1024) / FRAME_MIB,
            setting("ZMOVE_BENCH_RUNS", 5),
        )
    };
    println!(
        "{:>5}  {:18} {:>8} {:>15} {:>10}",
        "lanes", "form", "Gbit/s", "range", "CPU-s/GiB"
    );
    for lanes in [1, 8, 64] {
        let bench = Bench::new(lanes, (frames / lanes).max(1));
        let _warm_up = FORMS.map(|form| bench.run(form));
        let turns: Vec<_> = (0..runs)
            .map(|_| FORMS.map(|form| bench.run(form)))
            .collect();
        for (number, form) in FORMS.iter().enumerate() {
            report(
                lanes,
                form,
                bench.bytes(),
                turns.iter().map(|turn| turn[number]).collect(),
            );
        }
    }
}

fn setting(name: &str, default: usize) -> usize {
    env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// The way in which lanes run.
#[derive(Clone, Copy, Debug)]
enum Form {
    Threads(Wire),
    Tasks(Wire),
    TlsLane,
}

/// The format of the data on the connection.
#[derive(Clone, Copy, Debug)]
enum Wire {
    Clear,
    Sealed,
}

const FORMS: [Form; 5] = [
    Form::Threads(Wire::Clear),
    Form::Tasks(Wire::Clear),
    Form::Threads(Wire::Sealed),
    Form::Tasks(Wire::Sealed),
    Form::TlsLane,
];

#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    cpu: Duration,
}

fn report(lanes: usize, form: &Form, bytes: f64, mut costs: Vec<Cost>) {
    costs.sort_unstable_by_key(|cost| cost.wall);
    let rate = |cost: &Cost| bytes * 8.0 / cost.wall.as_secs_f64() / 1e9;
    let (fastest, slowest) = (rate(&costs[0]), rate(&costs[costs.len() - 1]));
    let median = rate(&costs[costs.len() / 2]);
    costs.sort_unstable_by_key(|cost| cost.cpu);
    let cpu = costs[costs.len() / 2].cpu.as_secs_f64() / (bytes / f64::from(1 << 30));
    let (form, range) = (format!("{form:?}"), format!("{slowest:.1} to {fastest:.1}"));
    println!("{lanes:>5}  {form:18} {median:>8.1} {range:>15} {cpu:>10.2}");
}

/// A number of lanes, each of which sends the same number of frames.
struct Bench {
    lanes: usize,
    frames: usize,
    sender: Runtime,
    receiver: Runtime,
    /// Pools of the sender and of the receiver. Each end of a lane holds one buffer at a time, so that no lane ever
    /// waits for one.
    pools: [BufferPool; 2],
}

impl Bench {
    fn new(lanes: usize, frames: usize) -> Self {
        let runtime = || {
            tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .expect("a runtime")
        };
        let pools = [(); 2].map(|()| BufferPool::new(FRAME_BYTES, lanes));
        Self {
            lanes,
            frames,
            sender: runtime(),
            receiver: runtime(),
            pools,
        }
    }

    fn bytes(&self) -> f64 {
        f64::from(u32::try_from(self.lanes * self.frames).expect("a size")) * f64::from(1 << 22)
    }

    fn run(&self, form: Form) -> Cost {
        match form {
            Form::Threads(wire) => self.threads(wire),
            Form::Tasks(wire) => self.tasks(wire),
            Form::TlsLane => self.tls_lanes(),
        }
    }

    fn threads(&self, wire: Wire) -> Cost {
        let sockets = self.sockets();
        let (frames, [near, far]) = (self.frames, &self.pools);
        timed(|| {
            thread::scope(|scope| {
                for (sending, receiving) in sockets {
                    scope.spawn(move || send(sending, &mut Layer::new(wire), frames, near));
                    scope.spawn(move || receive(receiving, &mut Layer::new(wire), frames, far));
                }
            });
        })
    }

    fn tasks(&self, wire: Wire) -> Cost {
        let sockets = self.sockets();
        let frames = self.frames;
        timed(|| {
            let mut lanes = JoinSet::new();
            for (sending, receiving) in sockets {
                let [near, far] = self.pools.clone();
                lanes.spawn_on(
                    send_async(sending, Layer::new(wire), frames, near),
                    self.sender.handle(),
                );
                let received = receive_async(receiving, Layer::new(wire), frames, far);
                lanes.spawn_on(received, self.receiver.handle());
            }
            self.sender.block_on(lanes.join_all());
        })
    }

    fn tls_lanes(&self) -> Cost {
        let connections = self.sender.block_on(connections(self.lanes));
        let (frames, [near, far]) = (self.frames, &self.pools);
        timed(|| {
            thread::scope(|scope| {
                for (sending, receiving) in connections {
                    scope.spawn(move || send_frames(sending, frames, near));
                    scope.spawn(move || receive_frames(receiving, frames, far));
                }
            });
        })
    }

    fn sockets(&self) -> Vec<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind(LOOPBACK).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let pair = || {
            let near = TcpStream::connect(address).expect("a connection");
            (near, listener.accept().expect("a connection").0)
        };
        (0..self.lanes).map(|_| pair()).collect()
    }
}

fn timed(work: impl FnOnce()) -> Cost {
    let (started, cpu_started) = (Instant::now(), cpu_time());
    work();
    Cost {
        wall: started.elapsed(),
        cpu: cpu_time() - cpu_started,
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.try_into().expect("positive"),
        time.tv_nsec.try_into().expect("below 10^9"),
    )
}

/// Encrypts or decrypts frames between a lane and its socket.
struct Layer {
    key: Option<Box<dyn PacketKey>>,
    records: u64,
    room: Vec<u8>,
}

impl Layer {
    fn new(wire: Wire) -> Self {
        let suite = TLS13_AES_256_GCM_SHA384
            .tls13()
            .and_then(|suite| suite.quic)
            .expect("it has one");
        let key = match wire {
            Wire::Clear => None,
            // The key is a constant, since the data is not secret.
            Wire::Sealed => Some(suite.packet_key([5; 32].into(), [6; 12].into())),
        };
        Self {
            key,
            records: 0,
            room: Vec::new(),
        }
    }

    /// Number of frame bytes per piece.
    fn piece_bytes(&self) -> usize {
        if self.key.is_some() {
            RECORDS_PER_PIECE * RECORD_BYTES
        } else {
            FRAME_BYTES
        }
    }

    /// Returns the bytes to write to the socket.
    fn seal<'a>(&'a mut self, piece: &'a [u8]) -> &'a [u8] {
        let Some(key) = &self.key else { return piece };
        self.room.clear();
        for record in piece.chunks(RECORD_BYTES) {
            let start = self.room.len();
            self.room.extend_from_slice(record);
            let tag = key
                .encrypt_in_place(self.records, &[], &mut self.room[start..])
                .expect("it fits");
            self.room.extend_from_slice(tag.as_ref());
            self.records += 1;
        }
        &self.room
    }

    /// Returns the buffer into which the socket's bytes for this piece are read.
    fn room<'a>(&'a mut self, piece: &'a mut [u8]) -> &'a mut [u8] {
        if self.key.is_none() {
            return piece;
        }
        self.room.resize(
            piece.len() + piece.len().div_ceil(RECORD_BYTES) * TAG_BYTES,
            0,
        );
        &mut self.room
    }

    /// Decrypts the data that was read into the [room](Self::room).
    fn open(&mut self, piece: &mut [u8]) {
        let Some(key) = &self.key else { return };
        for (out, record) in piece
            .chunks_mut(RECORD_BYTES)
            .zip(self.room.chunks_mut(RECORD_BYTES + TAG_BYTES))
        {
            out.copy_from_slice(
                key.decrypt_in_place(self.records, &[], record)
                    .expect("it is as it was"),
            );
            self.records += 1;
        }
    }
}

const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
const FRAME_MIB: usize = 4;
const FRAME_BYTES: usize = FRAME_MIB << 20;
const RECORD_BYTES: usize = 16 << 10;
const RECORDS_PER_PIECE: usize = 16;
const TAG_BYTES: usize = 16;

fn send(mut socket: TcpStream, layer: &mut Layer, frames: usize, pool: &BufferPool) {
    for _ in 0..frames {
        let mut frame = pool.take().expect("it stays open");
        for piece in frame.room().chunks(layer.piece_bytes()) {
            socket.write_all(layer.seal(piece)).expect("a connection");
        }
    }
}

fn receive(mut socket: TcpStream, layer: &mut Layer, frames: usize, pool: &BufferPool) {
    for _ in 0..frames {
        let mut frame = pool.take().expect("it stays open");
        for piece in frame.room().chunks_mut(layer.piece_bytes()) {
            socket.read_exact(layer.room(piece)).expect("a connection");
            layer.open(piece);
        }
    }
}

async fn send_async(socket: TcpStream, mut layer: Layer, frames: usize, pool: BufferPool) {
    let mut socket = registered(socket);
    for _ in 0..frames {
        let mut frame = pool.take().expect("it stays open");
        for piece in frame.room().chunks(layer.piece_bytes()) {
            socket
                .write_all(layer.seal(piece))
                .await
                .expect("a connection");
        }
    }
}

async fn receive_async(socket: TcpStream, mut layer: Layer, frames: usize, pool: BufferPool) {
    let mut socket = registered(socket);
    for _ in 0..frames {
        let mut frame = pool.take().expect("it stays open");
        for piece in frame.room().chunks_mut(layer.piece_bytes()) {
            socket
                .read_exact(layer.room(piece))
                .await
                .expect("a connection");
            layer.open(piece);
        }
    }
}

fn registered(socket: TcpStream) -> tokio::net::TcpStream {
    socket.set_nonblocking(true).expect("a socket");
    tokio::net::TcpStream::from_std(socket).expect("a runtime")
}

async fn connections(count: usize) -> Vec<(Connection, Connection)> {
    let home = tempfile::tempdir().expect("a directory");
    let identity = Identity::load_or_create(home.path()).expect("a key");
    let acceptor = Acceptor::on(
        TcpListener::bind(LOOPBACK).expect("a free port"),
        &identity,
        &SocketConfig::default(),
    )
    .expect("a listener");
    let port = acceptor.local_addr().expect("an address").port();
    let policy = HostPolicy::AcceptNew(FirstKey::default());
    let dialer = TcpDialer::new(
        &identity,
        "127.0.0.1",
        port,
        policy,
        SocketConfig::default(),
    );
    let dialer = dialer.await.expect("an address");
    let mut pairs = Vec::new();
    for _ in 0..count {
        let accepted = async {
            let (socket, _) = acceptor.accept_tcp().await.expect("a connection");
            acceptor
                .handshake(socket, PATIENCE, || ())
                .await
                .expect("a handshake")
        };
        let (near, far) = tokio::join!(dialer.dial(PATIENCE), accepted);
        pairs.push((near.expect("a connection"), far));
    }
    pairs
}

const PATIENCE: Duration = Duration::from_secs(30);

fn send_frames(connection: Connection, frames: usize, pool: &BufferPool) {
    let mut lane = TlsLane::new(connection, SharedRate::default()).expect("a lane");
    let clock = StageClock::default();
    for _ in 0..frames {
        let mut data = pool.take().expect("it stays open");
        data.set_len(FRAME_BYTES);
        let data_bytes = u32::try_from(FRAME_BYTES).expect("a few MiB");
        let header = FrameHeader {
            kind: FrameKind::Chunk,
            data_bytes,
            ..FrameHeader::default()
        };
        lane.send(
            Frame {
                header,
                head: Vec::new(),
                data,
            },
            &mut clock.start(),
        )
        .expect("a connection");
    }
    lane.finish().expect("a connection");
}

fn receive_frames(connection: Connection, frames: usize, pool: &BufferPool) {
    let mut lane = TlsLane::new(connection, SharedRate::default()).expect("a lane");
    let clock = StageClock::default();
    for _ in 0..frames {
        assert!(
            lane.receive(pool, &mut clock.start())
                .expect("a frame")
                .is_some()
        );
    }
    assert!(
        lane.receive(pool, &mut clock.start())
            .expect("the end")
            .is_none()
    );
}
