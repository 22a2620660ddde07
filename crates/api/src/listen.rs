//! Where the API is reached, and what a connection may cost: so many at each door, each with so much patience.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::fs::Mode;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::{Instant, Sleep, timeout, timeout_at};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};
use zmove_jobs::Place;

use crate::error::ApiError;
use crate::guard::Proof;
use crate::host_name::PublicName;
use crate::room::{Client, Guest, Room, Seat};
use crate::tls::Tls;
use crate::token::Token;

/// A place where clients come in.
#[derive(Debug)]
pub enum Door {
    /// A socket that only the user can open.
    Unix(std::os::unix::net::UnixListener),
    /// An address of the loopback. Clients have the token, and may come through a reverse proxy with this name.
    Tcp(std::net::TcpListener, Token, Option<PublicName>),
    /// Any address, where a client has to show a certificate.
    Tls(std::net::TcpListener, Tls),
}

/// The socket of the jobs of a place.
#[must_use]
pub fn socket(place: &Place) -> PathBuf {
    place.path().join("api.sock")
}

/// Makes the socket, for the user alone. To be called while the process has one thread, since it sets the mask for new
/// files meanwhile.
///
/// # Errors
/// The system's, or another runner answers there.
pub fn bind_unix(place: &Place) -> Result<Door, ApiError> {
    let path = socket(place);
    let fail = |operation| {
        let path = path.clone();
        move |source| ApiError::Io {
            operation,
            path,
            source,
        }
    };
    // A runner that was killed leaves its socket.
    if path
        .symlink_metadata()
        .is_ok_and(|found| found.file_type().is_socket())
    {
        if UnixStream::connect(&path).is_ok() {
            let up = io::Error::new(io::ErrorKind::AddrInUse, "another runner answers there");
            return Err(fail("listen at")(up));
        }
        std::fs::remove_file(&path).map_err(fail("remove"))?;
    }
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let bound = std::os::unix::net::UnixListener::bind(&path);
    rustix::process::umask(before);
    let listener = bound.map_err(fail("listen at"))?;
    listener.set_nonblocking(true).map_err(fail("listen at"))?;
    Ok(Door::Unix(listener))
}

/// Listens at an address of the loopback, for clients of this host and of a reverse proxy with a public name.
///
/// # Errors
/// The system's, or other hosts can reach that address.
pub fn bind_tcp(
    address: SocketAddr,
    token: Token,
    public_name: Option<PublicName>,
) -> Result<(Door, SocketAddr), ApiError> {
    if !address.ip().is_loopback() {
        return Err(ApiError::Public(address));
    }
    let (listener, bound) = listen(address)?;
    Ok((Door::Tcp(listener, token, public_name), bound))
}

/// Listens at any address, over TLS.
///
/// # Errors
/// The system's.
pub fn bind_tls(address: SocketAddr, tls: Tls) -> Result<(Door, SocketAddr), ApiError> {
    let (listener, bound) = listen(address)?;
    Ok((Door::Tls(listener, tls), bound))
}

fn listen(address: SocketAddr) -> Result<(std::net::TcpListener, SocketAddr), ApiError> {
    let fail = |source| ApiError::Listen { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok((listener, bound))
}

/// Serves a door for ever.
pub(crate) async fn attend(door: Door, router: impl Fn(Proof) -> Router) -> io::Result<()> {
    match door {
        Door::Unix(listener) => {
            let listener = UnixListener::from_std(listener)?;
            let accept = |context: &mut Context<'_>| {
                listener.poll_accept(context).map_ok(|(socket, _)| socket)
            };
            serve_each(accept, router(Proof::Socket)).await;
        }
        Door::Tcp(listener, token, public_name) => {
            let listener = TcpListener::from_std(listener)?;
            let accept = |context: &mut Context<'_>| {
                listener.poll_accept(context).map_ok(|(socket, _)| socket)
            };
            let proof = Proof::Token { token, public_name };
            serve_each(accept, router(proof)).await;
        }
        Door::Tls(listener, tls) => {
            let listener = TcpListener::from_std(listener)?;
            let router = router(Proof::Certificate(tls.names().clone()));
            serve_each_known(&listener, &tls.acceptor(), &router, WELCOME_TIME_MAX).await;
        }
    }
    Ok(())
}

/// The rooms of a door.
struct Rooms {
    connections: Arc<Room>,
    streams: Arc<Room>,
}

impl Rooms {
    fn new() -> Self {
        Self {
            connections: Room::new(CONNECTIONS_MAX),
            streams: Room::new(STREAMS_MAX),
        }
    }

    fn visitor(&self, client: Client, seat: Arc<Seat>) -> Visitor {
        Visitor {
            client,
            seat,
            streams: Arc::clone(&self.streams),
        }
    }
}

/// The client at the other end of a connection; each request has it among its extensions.
#[derive(Debug)]
pub(crate) struct Visitor {
    pub(crate) client: Client,
    /// The place of the connection.
    pub(crate) seat: Arc<Seat>,
    /// Where streams of events have their places.
    pub(crate) streams: Arc<Room>,
}

async fn serve_each<Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut poll_accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<Socket>>,
    router: Router,
) {
    let rooms = Rooms::new();
    loop {
        let Ok(socket) = poll_fn(&mut poll_accept).await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Where all are being served, others wait to be accepted.
        let guest = rooms.connections.enter(&None).await;
        let visitor = rooms.visitor(None, Arc::clone(&guest.seat));
        let socket = Patient {
            seat: Some(Arc::clone(&guest.seat)),
            ..Patient::new(socket)
        };
        tokio::spawn(converse(socket, router.clone(), guest, visitor));
    }
}

/// Serves all that show a certificate within `welcome_time`. Until then they have a room of their own, so
/// that they take no place from those
/// who have shown one.
async fn serve_each_known(
    listener: &TcpListener,
    acceptor: &TlsAcceptor,
    router: &Router,
    welcome_time: Duration,
) {
    let (strangers, rooms) = (Room::new(STRANGERS_MAX), Arc::new(Rooms::new()));
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // There is a place at once: all strangers are waited for, so that one of them gives way.
        let stranger = strangers.enter(&None).await;
        let (rooms, router) = (Arc::clone(&rooms), router.clone());
        let shown = acceptor.accept(Patient::new(socket));
        tokio::spawn(async move {
            let known = tokio::select! {
                known = welcome(shown, &rooms, welcome_time) => known,
                _given_up = stranger.given_up => None,
            };
            drop(stranger.seat);
            if let Some((socket, guest, visitor)) = known {
                converse(socket, router, guest, visitor).await;
            }
        });
    }
}

type Known = TlsStream<Patient<TcpStream>>;

/// Waits until a client has shown a certificate, and has a place.
async fn welcome(
    shown: Accept<Patient<TcpStream>>,
    rooms: &Rooms,
    welcome_time: Duration,
) -> Option<(Known, Guest, Visitor)> {
    let until = Instant::now() + welcome_time;
    let mut socket = match timeout_at(until, shown.into_fallible()).await.ok()? {
        Ok(socket) => socket,
        Err((_, socket)) => {
            let _late = timeout_at(until, turn_away(socket)).await;
            return None;
        }
    };
    let (patient, session) = socket.get_mut();
    let client = session
        .peer_certificates()
        .and_then(|shown| shown.first())
        .cloned();
    if let Ok(guest) = timeout_at(until, rooms.connections.enter(&client)).await {
        patient.seat = Some(Arc::clone(&guest.seat));
        let visitor = rooms.visitor(client, Arc::clone(&guest.seat));
        return Some((socket, guest, visitor));
    }
    let _gone = timeout(FAREWELL_TIME_MAX, async {
        socket.write_all(FULL.as_bytes()).await.ok()?;
        turn_away(socket).await
    })
    .await;
    None
}

/// Ends a connection that is not served. What its client goes on to say is taken, since a system that throws away what
/// was not read resets the connection, and the client might never see why.
async fn turn_away(mut socket: impl AsyncRead + AsyncWrite + Unpin) -> Option<()> {
    socket.shutdown().await.ok()?;
    tokio::io::copy(&mut socket, &mut tokio::io::sink())
        .await
        .ok()?;
    Some(())
}

/// Answers one client, until its place is somebody else's.
async fn converse(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    guest: Guest,
    visitor: Visitor,
) {
    let (visitor, router) = (Arc::new(visitor), TowerToHyperService::new(router));
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&visitor));
        router.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(BUFFER_BYTES);
    tokio::select! {
        // A client that is slow, gone or makes no sense is ignored.
        _ended = http.serve_connection(TokioIo::new(socket), answer) => {}
        _given_up = guest.given_up => {}
    }
}

/// A connection whose other end has to take what it is sent within some time.
struct Patient<Socket> {
    socket: Socket,
    /// When patience ends, while something waits to be taken.
    until: Option<Pin<Box<Sleep>>>,
    /// The place of the connection, which is told when all is taken.
    seat: Option<Arc<Seat>>,
}

impl<Socket: AsyncWrite + Unpin> Patient<Socket> {
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            until: None,
            seat: None,
        }
    }

    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Socket>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = write(Pin::new(&mut self.socket), context) {
            self.until = None;
            return Poll::Ready(done);
        }
        let deadline = || Box::pin(tokio::time::sleep_until(Instant::now() + STALL_TIME_MAX));
        ready!(
            self.until
                .get_or_insert_with(deadline)
                .as_mut()
                .poll(context)
        );
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<Socket: AsyncRead + Unpin> AsyncRead for Patient<Socket> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<Socket: AsyncWrite + Unpin> AsyncWrite for Patient<Socket> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bounded(context, |socket, context| socket.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.bounded(context, AsyncWrite::poll_flush);
        if let (Poll::Ready(Ok(())), Some(seat)) = (&flushed, &self.seat) {
            seat.sent();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bounded(context, AsyncWrite::poll_shutdown)
    }
}

/// The most connections of one door that are served at once; further ones wait.
const CONNECTIONS_MAX: usize = 64;
/// The most of them that are streams of events, so that connections are left for all else.
const STREAMS_MAX: usize = 32;
/// The most connections of one door that have not shown yet that they may be served.
const STRANGERS_MAX: usize = 256;
/// How long a client may take to show a certificate, and then wait for a place.
const WELCOME_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a client for which there was no place may take to be told so.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a client may take for the head of a request, and between two requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a client may leave what it is sent.
const STALL_TIME_MAX: Duration = Duration::from_secs(30);
/// What is kept of a request's head, and of an answer that is not taken yet.
const BUFFER_BYTES: usize = 32 << 10;
/// How long to pause when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What a client is told for which there was no place.
const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\n\
     Connection: close\r\nContent-Length: 80\r\n\r\n\
     {\"error\":\"there are too many connections, of this client or in all\",\"exit\":null}";

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use axum::middleware::from_fn;
    use axum::routing::get;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::AsyncReadExt as _;
    use tokio::sync::watch;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::routes::at_work;
    use crate::tls::TlsFiles;

    #[test]
    fn addresses_that_other_hosts_reach_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let token = Token::renewed(&directory.path().join("token")).unwrap();
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "[2001:db8::1]:80"] {
            let refused = bind_tcp(address.parse().unwrap(), token.clone(), None).unwrap_err();
            assert!(
                matches!(refused, ApiError::Public(_)),
                "{address}: {refused}"
            );
        }
        bind_tcp("127.0.0.1:0".parse().unwrap(), token, None).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_left() {
        let (own, _theirs) = tokio::io::duplex(10);
        let error = Patient::new(own).write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// A door over TLS, where `/` never answers and `/large` answers with many bytes.
    struct Secured {
        address: SocketAddr,
        /// The number of requests for `/` that are being served.
        endless: watch::Receiver<usize>,
        authority: CertifiedIssuer<'static, KeyPair>,
    }

    impl Secured {
        /// A door whose clients have so long to show a certificate, and then to wait for a place.
        fn new(welcome_time: Duration) -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let authority =
                CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            let directory = tempfile::tempdir().unwrap();
            let [certificate, key, client_authority] =
                ["cert.pem", "key.pem", "ca.pem"].map(|name| directory.path().join(name));
            let (own, own_key) = issued(&authority);
            std::fs::write(&certificate, own.pem()).unwrap();
            std::fs::write(&client_authority, authority.pem()).unwrap();
            std::fs::write(&key, own_key.serialize_pem()).unwrap();
            std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
            let files = TlsFiles {
                certificate: &certificate,
                key: &key,
                client_authority: &client_authority,
            };
            let tls = Tls::read(&files).unwrap();
            let (door, address) = bind_tls("127.0.0.1:0".parse().unwrap(), tls).unwrap();
            let (begun, endless) = watch::channel(0);
            let serve_endlessly = async move || {
                begun.send_modify(|count| *count += 1);
                std::future::pending::<()>().await
            };
            let routes = Router::new()
                .route("/", get(serve_endlessly))
                .route("/large", get(async || vec![b'x'; LARGE_BYTES]))
                .layer(from_fn(at_work));
            let Door::Tls(listener, tls) = door else {
                panic!("a door over TLS")
            };
            let listener = TcpListener::from_std(listener).unwrap();
            tokio::spawn(async move {
                serve_each_known(&listener, &tls.acceptor(), &routes, welcome_time).await
            });
            Self {
                address,
                endless,
                authority,
            }
        }

        /// What connects as a client of its own.
        fn client(&self) -> TlsConnector {
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.der().clone()).unwrap();
            let (certificate, key) = issued(&self.authority);
            let chain = vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config =
                ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
            let config = config
                .unwrap()
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key);
            TlsConnector::from(Arc::new(config.unwrap()))
        }

        /// A connection over which something has been said.
        async fn say(
            &self,
            client: &TlsConnector,
            words: &str,
        ) -> tokio_rustls::client::TlsStream<TcpStream> {
            let socket = TcpStream::connect(self.address).await.unwrap();
            let mut socket = client
                .connect("localhost".try_into().unwrap(), socket)
                .await
                .unwrap();
            socket.write_all(words.as_bytes()).await.unwrap();
            socket
        }

        /// All that is answered to one request.
        async fn get(&self, client: &TlsConnector, path: &str) -> String {
            let words =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let mut said = Vec::new();
            let _end = self.say(client, &words).await.read_to_end(&mut said).await;
            String::from_utf8(said).unwrap()
        }
    }

    impl Secured {
        /// Opens as many connections as one client may have, each with a request that is being served.
        async fn keep_busy(&self, client: &TlsConnector) -> Vec<impl AsyncRead> {
            let most = CONNECTIONS_MAX / 2;
            let busy = say_often(self, client, ENDLESS, most).await;
            let mut endless = self.endless.clone();
            endless.wait_for(|count| *count == most).await.unwrap();
            busy
        }

        /// Asks as this client for a page, and gets an answer although others are waited for.
        async fn assert_serves(&self, client: &TlsConnector) {
            let answer = timeout(Duration::from_secs(60), self.get(client, "/nowhere"));
            let answer = answer.await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        }
    }

    fn issued(authority: &CertifiedIssuer<'static, KeyPair>) -> (rcgen::Certificate, KeyPair) {
        let (key, params) = (
            KeyPair::generate().unwrap(),
            CertificateParams::new(["localhost".to_owned()]),
        );
        (params.unwrap().signed_by(&key, authority).unwrap(), key)
    }

    /// Longer than any test.
    const HOUR: Duration = Duration::from_secs(3600);
    const LARGE_BYTES: usize = 32 << 20;
    const ENDLESS: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// So many connections that say the same, and no word of which is answered yet.
    async fn say_often(
        secured: &Secured,
        client: &TlsConnector,
        words: &str,
        count: usize,
    ) -> Vec<impl AsyncRead> {
        let mut said = Vec::new();
        for _ in 0..count {
            said.push(secured.say(client, words).await);
        }
        said
    }

    #[tokio::test]
    async fn a_client_that_is_served_often_keeps_out_no_other_and_is_told_to_come_again() {
        let secured = Secured::new(HOUR);
        let [alice, bob] = [secured.client(), secured.client()];
        let _busy = secured.keep_busy(&alice).await;
        let _waits = secured.say(&alice, ENDLESS).await;
        secured.assert_serves(&bob).await;

        let welcome_time = Duration::from_secs(3);
        let secured = Secured::new(welcome_time);
        let alice = secured.client();
        let _busy = secured.keep_busy(&alice).await;
        let begun = Instant::now();
        let refused = secured.get(&alice, "/nowhere").await;
        assert!(begun.elapsed() >= welcome_time, "it is waited for first");
        let (head, body) = refused.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 503") && head.contains("Retry-After: 5"),
            "{refused}"
        );
        assert!(
            head.contains(&format!("Content-Length: {}", body.len())),
            "{refused}"
        );
        let told: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            told["error"],
            "there are too many connections, of this client or in all"
        );
    }

    /// Heads, bodies and pauses between two requests.
    #[tokio::test]
    async fn clients_that_are_waited_for_keep_out_nobody() {
        let secured = Secured::new(HOUR);
        let clients = [secured.client(), secured.client(), secured.client()];
        let slow = [
            "GET /nowhere HTT",
            "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
            "",
        ];
        let mut held = Vec::new();
        for (client, words) in clients.iter().zip(slow) {
            held.extend(say_often(&secured, client, words, CONNECTIONS_MAX).await);
        }
        for client in &clients {
            secured.assert_serves(client).await;
        }
    }

    #[tokio::test]
    async fn a_large_answer_comes_whole_although_others_come_in() {
        let secured = Secured::new(WELCOME_TIME_MAX);
        let [alice, bob, eve] = [secured.client(), secured.client(), secured.client()];
        let words = "GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut large = secured.say(&alice, words).await;
        large.read_exact(&mut [0; 1]).await.unwrap();
        let mut held = say_often(&secured, &bob, "", CONNECTIONS_MAX).await;
        held.extend(say_often(&secured, &eve, "", CONNECTIONS_MAX).await);
        let mut said = Vec::new();
        large.read_to_end(&mut said).await.unwrap();
        let head_bytes = said
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap()
            + 4;
        let body = &said[head_bytes..];
        assert_eq!(body.len(), LARGE_BYTES);
        assert!(body.iter().all(|byte| *byte == b'x'));
    }
}
