//! Compares QUIC as zmove uses it with bare quinn: the same bytes between the same two ends, by real processes.
//!
//! Bare quinn sends bytes from memory over as many connections as zmove has lanes, with the cipher, windows and
//! acknowledgements of zmove. The other end discards them. quinn uses its preferred datagram size. It passes ten
//! datagrams to the kernel in one call, and ten of the larger datagrams that zmove uses would not fit into one UDP
//! send. zmove reads a cached file, hashes it at both ends, writes it and flushes it. The two take turns, and the table
//! has all runs.
//!
//! `ZMOVE_BENCH_MIB` sets the size (default 1024), `ZMOVE_BENCH_RUNS` the number of runs (default 5), `ZMOVE_BENCH_DIR`
//! the directory of the data, and `ZMOVE_BENCH_LANES` the number of connections for both. With `-- --test` there is one
//! turn. Inside `zmove-lab hosts` the ends are its two hosts, otherwise both are on loopback.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{AckFrequencyConfig, Endpoint, MtuDiscoveryConfig, TokioRuntime, TransportConfig};
use rustls::CipherSuite;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

fn main() {
    let words: Vec<_> = env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["drain", address, certificate] => {
            drain(address.parse().expect("an address"), Path::new(certificate))
        }
        ["pour", address, certificate, mib, lanes] => {
            let (mib, lanes) = (
                mib.parse().expect("a number"),
                lanes.parse().expect("a number"),
            );
            pour(
                address.parse().expect("an address"),
                Path::new(certificate),
                mib,
                lanes,
            );
        }
        _ => take_turns(),
    }
}

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Returns a command prefix and an address for one end of the path. Outside the lab both ends are this host.
fn host(variable: &str) -> (Vec<String>, &'static str) {
    match env::var(variable) {
        Ok(name) => (
            ["ip", "netns", "exec", &name].map(str::to_owned).into(),
            "10.99.0.2",
        ),
        Err(_) => (Vec::new(), "127.0.0.1"),
    }
}

fn command(on: &[String], program: impl AsRef<Path>, home: &Path) -> Command {
    let program = program.as_ref().to_str().expect("a plain path");
    let words: Vec<_> = on.iter().map(String::as_str).chain([program]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("ZMOVE_HOME", home);
    command
}

/// A server process that is killed when dropped.
struct Server(Child);

impl Server {
    /// Starts the server and waits for its first line.
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .expect("a line");
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The two programs under comparison, with their files and hosts.
struct Bench {
    zmove: &'static str,
    own: PathBuf,
    near: Vec<String>,
    far: Vec<String>,
    address: &'static str,
    home: PathBuf,
    other_home: PathBuf,
    source: PathBuf,
    target: PathBuf,
    certificate: PathBuf,
    mib: u64,
    lanes: u64,
}

impl Bench {
    fn new(top: &Path) -> Self {
        let (near, _) = host("ZMOVE_LAB_SRC");
        let (far, address) = host("ZMOVE_LAB_DST");
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            zmove: env!("CARGO_BIN_EXE_zmove"),
            own: env::current_exe().expect("this program"),
            near,
            far,
            address,
            home: top.join("near"),
            other_home: top.join("far"),
            source: top.join("source"),
            target: top.join("target"),
            certificate: top.join("certificate"),
            mib: setting("ZMOVE_BENCH_MIB", 1024),
            lanes: setting("ZMOVE_BENCH_LANES", (2 * cores).clamp(4, 8) as u64),
        }
    }

    /// Authorizes the near user for the target of the far host.
    fn allow_pushes(&self) {
        let key = command(&[], self.zmove, &self.home)
            .args(["key", "show"])
            .output()
            .expect("a key");
        let key = String::from_utf8(key.stdout).expect("a fingerprint");
        let mut allow = command(&[], self.zmove, &self.other_home);
        allow
            .args(["allow", key.trim(), "--name", "bench", "--write", "--root"])
            .arg(&self.target);
        assert!(
            allow
                .stdout(Stdio::null())
                .status()
                .expect("it runs")
                .success()
        );
    }

    fn start_daemon(&self) -> Server {
        let mut serve = command(&self.far, self.zmove, &self.other_home);
        serve.args([
            "serve",
            "--listen",
            &format!("{}:5870", self.address),
            "--transport",
            "quic",
        ]);
        Server::start(serve)
    }

    fn start_drain(&self) -> Server {
        let mut drain = command(&self.far, &self.own, &self.other_home);
        drain
            .args(["drain", &format!("{}:5871", self.address)])
            .arg(&self.certificate);
        Server::start(drain)
    }

    /// Runs zmove and returns its duration in seconds.
    fn time_zmove(&self) -> f64 {
        let mut push = command(&self.near, self.zmove, &self.home);
        push.args([
            "push",
            "--quiet",
            "--accept-new",
            "--transport",
            "quic",
            "--streams",
            &self.lanes.to_string(),
        ]);
        push.arg(&self.source)
            .arg(format!("{}:{}/", self.address, self.target.display()))
            .stderr(Stdio::null());
        let seconds = timed(push);
        fs::remove_file(self.target.join("source")).expect("it has arrived");
        seconds
    }

    /// Runs bare quinn and returns its duration in seconds.
    fn time_quinn(&self) -> f64 {
        let mut pour = command(&self.near, &self.own, &self.home);
        pour.args(["pour", &format!("{}:5871", self.address)])
            .arg(&self.certificate)
            .args([self.mib.to_string(), self.lanes.to_string()]);
        timed(pour)
    }
}

fn take_turns() {
    // As in the criterion benches, `--test` runs one turn to check that everything works.
    let smoke = env::args().any(|word| word == "--test");
    let runs = if smoke {
        1
    } else {
        setting("ZMOVE_BENCH_RUNS", 5)
    };
    let parent = env::var_os("ZMOVE_BENCH_DIR").map_or_else(env::temp_dir, Into::into);
    let top = tempfile::tempdir_in(parent).expect("a directory");
    let bench = Bench::new(top.path());
    fs::create_dir(&bench.target).expect("a directory");
    build(&bench.source, bench.mib);
    bench.allow_pushes();
    let _daemon = bench.start_daemon();
    let _drain = bench.start_drain();
    // Warms up both.
    bench.time_zmove();
    bench.time_quinn();
    let mut ours = Vec::new();
    let mut bare = Vec::new();
    for _ in 0..runs {
        ours.push(bench.time_zmove());
        bare.push(bench.time_quinn());
    }
    let ours = report("zmove", bench.mib, &mut ours);
    let bare = report("quinn", bench.mib, &mut bare);
    println!("zmove / quinn: {:.2}", bare / ours);
}

/// Writes an incompressible file.
fn build(path: &Path, mib: u64) {
    let mut contents = vec![0; 1 << 20];
    let mut file = File::create(path).expect("a file");
    for number in 0..mib {
        blake3::Hasher::new()
            .update(&number.to_le_bytes())
            .finalize_xof()
            .fill(&mut contents);
        file.write_all(&contents).expect("room");
    }
    file.sync_all().expect("a flush");
}

fn timed(mut command: Command) -> f64 {
    let started = Instant::now();
    assert!(command.status().expect("it runs").success(), "{command:?}");
    started.elapsed().as_secs_f64()
}

/// Prints a line and returns the median.
fn report(name: &str, mib: u64, seconds: &mut [f64]) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let bits = f64::from(u32::try_from(mib).expect("a size")) * 8.0 * 1_048_576.0;
    println!(
        "{name}: {:.2} Gbit/s, {median:.2} s (all: {seconds:.2?})",
        bits / median / 1e9
    );
    median
}

fn transport() -> Arc<TransportConfig> {
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(10_u32.into())
        .max_ack_delay(Some(Duration::from_millis(5)));
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(DATAGRAM_BYTES_MAX);
    let mut cubic = CubicConfig::default();
    cubic.initial_window(128 << 10);
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(WINDOW_BYTES.into())
        .receive_window(WINDOW_BYTES.into())
        .send_window(WINDOW_BYTES.into())
        .send_fairness(false)
        .mtu_discovery_config(Some(mtu))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(Arc::new(cubic));
    Arc::new(config)
}

const WINDOW_BYTES: u32 = 16 << 20;
const DATAGRAM_BYTES_MAX: u16 = 6_500;
const SOCKET_BUFFER_BYTES: usize = 8 << 20;

fn endpoint(address: SocketAddr, server: Option<quinn::ServerConfig>) -> Endpoint {
    let socket = UdpSocket::bind(address).expect("a free port");
    // Without the required capability, the buffer keeps its size, for zmove as well.
    let _forced =
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER_BYTES);
    let _forced =
        rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SOCKET_BUFFER_BYTES);
    let mut config = quinn::EndpointConfig::default();
    config
        .max_udp_payload_size(DATAGRAM_BYTES_MAX)
        .expect("large enough");
    Endpoint::new(config, server, socket, Arc::new(TokioRuntime)).expect("an endpoint")
}

/// Receives and discards data forever.
fn drain(address: SocketAddr, certificate: &Path) {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
    fs::write(certificate, made.cert.der()).expect("it can be written");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let mut server =
        quinn::ServerConfig::with_single_cert(vec![made.cert.der().clone()], key).expect("it fits");
    server.transport_config(transport());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let endpoint = endpoint(address, Some(server));
        println!("ready");
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                let Ok(connection) = incoming.await else {
                    return;
                };
                while let Ok((mut answer, mut stream)) = connection.accept_bi().await {
                    while let Ok(Some(_)) = stream.read_chunk(usize::MAX, false).await {}
                    drop(answer.write_all(b"all").await);
                }
            });
        }
    });
}

/// Sends `mib` MiB over `lanes` connections, each with its own thread.
fn pour(address: SocketAddr, certificate: &Path, mib: u64, lanes: u64) {
    let certificate = CertificateDer::from(fs::read(certificate).expect("the certificate"));
    let threads: Vec<_> = (0..lanes)
        .map(|lane| {
            let (certificate, chunks) = (
                certificate.clone(),
                mib / lanes + u64::from(lane < mib % lanes),
            );
            std::thread::spawn(move || pour_one(address, certificate, chunks))
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("it does not panic"));
}

fn pour_one(address: SocketAddr, certificate: CertificateDer<'static>, chunks: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut client = quinn::ClientConfig::new(Arc::new(tls(certificate)));
        client.transport_config(transport());
        let endpoint = endpoint(SocketAddr::from(([0; 4], 0)), None);
        let connection = endpoint
            .connect_with(client, address, NAME)
            .expect("an address")
            .await
            .expect("an answer");
        let (mut stream, mut answer) = connection.open_bi().await.expect("a stream");
        let chunk = bytes::Bytes::from(vec![7; 1 << 20]);
        for _ in 0..chunks {
            stream
                .write_chunk(chunk.clone())
                .await
                .expect("a connection");
        }
        stream.finish().expect("a stream");
        answer.read_to_end(16).await.expect("an answer");
    });
}

/// TLS settings with the cipher suite that zmove prefers. rustls by default would prefer AES-256, which is slower.
fn tls(certificate: CertificateDer<'static>) -> QuicClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).expect("a certificate");
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3");
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    QuicClientConfig::try_from(config).expect("a suite for QUIC")
}

const NAME: &str = "drain";
