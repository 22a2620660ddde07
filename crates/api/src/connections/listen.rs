//! The listeners of the API and the limits of their connections: number, memory and time.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};
use zmove_jobs::{JobsDirectory, bind_socket};

use crate::connections::guard::Proof;
use crate::connections::host_name::PublicName;
use crate::connections::room::{ConnectionSlot, ConnectionSlots, SlotHolder};
use crate::connections::token::Token;
use crate::error::ApiError;

/// A listener of the API.
#[derive(Debug)]
pub enum ApiListener {
    /// A Unix socket that only the user can open.
    Unix(std::os::unix::net::UnixListener),
    /// An address of the loopback interface. Clients authenticate with the token, and may connect through a reverse
    /// proxy that has this public name.
    Tcp(std::net::TcpListener, Token, Option<PublicName>),
}

/// Returns the path of the API's socket in a directory of jobs.
#[must_use]
pub fn socket(place: &JobsDirectory) -> PathBuf {
    place.path().join("api.sock")
}

/// Creates the Unix socket, which only the user can open.
///
/// The function changes the umask of the process temporarily, so call it while the process has only one thread.
///
/// # Errors
/// The socket cannot be created, or another runner listens on it.
pub fn bind_unix(place: &JobsDirectory) -> Result<ApiListener, ApiError> {
    let path = socket(place);
    match bind_socket(&path, "another runner is listening there") {
        Ok(listener) => Ok(ApiListener::Unix(listener)),
        Err(source) => Err(ApiError::Io {
            operation: "listen on",
            path,
            source,
        }),
    }
}

/// Listens on an address of the loopback interface, for clients on this host and for a reverse proxy with a public
/// name.
///
/// # Errors
/// The address cannot be used, or other hosts can reach it.
pub fn bind_tcp(
    address: SocketAddr,
    token: Token,
    public_name: Option<PublicName>,
) -> Result<(ApiListener, SocketAddr), ApiError> {
    if !address.ip().is_loopback() {
        return Err(ApiError::Public(address));
    }
    let fail = |source| ApiError::Listen { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok((ApiListener::Tcp(listener, token, public_name), bound))
}

/// Serves the connections of a listener without end.
pub(crate) async fn serve_listener(
    listener: ApiListener,
    router: impl Fn(Proof) -> Router,
) -> io::Result<()> {
    match listener {
        ApiListener::Unix(listener) => {
            let listener = UnixListener::from_std(listener)?;
            let accept = |context: &mut Context<'_>| {
                listener.poll_accept(context).map_ok(|(socket, _)| socket)
            };
            serve_each(accept, router(Proof::Socket)).await;
        }
        ApiListener::Tcp(listener, token, public_name) => {
            let listener = TcpListener::from_std(listener)?;
            let accept = |context: &mut Context<'_>| {
                listener.poll_accept(context).map_ok(|(socket, _)| socket)
            };
            let proof = Proof::Token { token, public_name };
            serve_each(accept, router(proof)).await;
        }
    }
    Ok(())
}

/// The connection on which a request arrived. It is an extension of the request.
#[derive(Debug)]
pub(crate) struct Visitor {
    /// The slot of the connection.
    pub(crate) slot: Arc<ConnectionSlot>,
    /// Permits for the event streams of the listener.
    pub(crate) streams: Arc<Semaphore>,
}

async fn serve_each<Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut poll_accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<Socket>>,
    router: Router,
) {
    let connections = ConnectionSlots::new(CONNECTIONS_MAX);
    let streams = Arc::new(Semaphore::new(STREAMS_MAX));
    loop {
        let Ok(socket) = poll_fn(&mut poll_accept).await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // While every connection has a request in progress, further ones wait to be accepted.
        let holder = connections.acquire().await;
        let visitor = Visitor {
            slot: Arc::clone(&holder.slot),
            streams: Arc::clone(&streams),
        };
        let socket = WriteTimeout::new(socket, Arc::clone(&holder.slot));
        tokio::spawn(serve_client(socket, router.clone(), holder, visitor));
    }
}

/// Serves one connection until it closes or its slot is given to another connection.
async fn serve_client(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    holder: SlotHolder,
    visitor: Visitor,
) {
    let visitor = Arc::new(visitor);
    let router = TowerToHyperService::new(router);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&visitor));
        router.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(BUFFER_BYTES);
    tokio::select! {
        // The connection is closed without a response if the client is slow, disconnects or violates HTTP.
        _ended = http.serve_connection(TokioIo::new(socket), answer) => {}
        _given_up = holder.given_up => {}
    }
}

/// A connection that fails if its client reads nothing for [`STALL_TIME_MAX`].
struct WriteTimeout<Socket> {
    socket: Socket,
    /// Deadline for the client to read, set while a write is pending.
    until: Option<Pin<Box<Sleep>>>,
    /// The slot of the connection, which is notified when all data has been sent.
    slot: Arc<ConnectionSlot>,
}

impl<Socket: AsyncWrite + Unpin> WriteTimeout<Socket> {
    fn new(socket: Socket, slot: Arc<ConnectionSlot>) -> Self {
        Self {
            socket,
            until: None,
            slot,
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

impl<Socket: AsyncRead + Unpin> AsyncRead for WriteTimeout<Socket> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<Socket: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<Socket> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bounded(context, |socket, context| socket.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.bounded(context, AsyncWrite::poll_flush);
        if let Poll::Ready(Ok(())) = flushed {
            self.slot.mark_idle();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bounded(context, AsyncWrite::poll_shutdown)
    }
}

/// Maximum number of connections of one listener. Further ones wait.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of connections that are event streams. The other connections remain available for requests.
const STREAMS_MAX: usize = 32;
/// Maximum time that a client may take for the head of a request, including the time between two requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum time that a client may leave sent data unread.
const STALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum number of bytes to buffer of a request's head or of an unread response.
const BUFFER_BYTES: usize = 32 << 10;
/// The pause after an accept failed, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;
    use crate::routes::at_work;

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
        let holder = ConnectionSlots::new(1).acquire().await;
        let mut socket = WriteTimeout::new(own, holder.slot);
        let error = socket.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// Starts a listener that answers `/large` with a large response.
    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/large", get(async || vec![b'x'; LARGE_BYTES]))
            .layer(from_fn(at_work));
        tokio::spawn(async move {
            let accept = |context: &mut Context<'_>| {
                listener.poll_accept(context).map_ok(|(socket, _)| socket)
            };
            serve_each(accept, router).await;
        });
        address
    }

    /// Opens a connection and sends `words`.
    async fn say(address: SocketAddr, words: &str) -> TcpStream {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(words.as_bytes()).await.unwrap();
        socket
    }

    /// Opens one connection for each slot, and sends `words` on each.
    async fn say_often(address: SocketAddr, words: &str) -> Vec<TcpStream> {
        let mut said = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            said.push(say(address, words).await);
        }
        said
    }

    /// Opens connections with an unfinished head, with an unfinished body, and without a request.
    #[tokio::test]
    async fn clients_that_are_waited_for_keep_out_nobody() {
        let address = start().await;
        let slow = [
            "GET /nowhere HTT",
            "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
            "",
        ];
        let mut held = Vec::new();
        for words in slow {
            held.extend(say_often(address, words).await);
            let request = "GET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n";
            let mut socket = say(address, request).await;
            let mut answer = String::new();
            let read = timeout(HEAD_TIME_MAX, socket.read_to_string(&mut answer));
            read.await.expect("an answer in time").unwrap();
            assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_large_answer_comes_whole_although_others_come_in() {
        let address = start().await;
        let words = "GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut large = say(address, words).await;
        large.read_exact(&mut [0; 1]).await.unwrap();
        let _others = say_often(address, "").await;
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

    const LARGE_BYTES: usize = 32 << 20;
}
