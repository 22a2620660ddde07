//! Where the API is reached, and what a connection may cost: so many at each door, each with so much patience.

use std::collections::VecDeque;
use std::convert::Infallible;
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
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::fs::Mode;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, Sleep, timeout};
use tokio_rustls::TlsAcceptor;
use zmove_jobs::Place;

use crate::error::ApiError;
use crate::guard::Proof;
use crate::tls::Tls;
use crate::token::Token;

/// A place where clients come in.
#[derive(Debug)]
pub enum Door {
    /// A socket that only the user can open.
    Unix(std::os::unix::net::UnixListener),
    /// An address of the loopback, where a client has to know the token.
    Tcp(std::net::TcpListener, Token),
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
        move |source| ApiError::Io { operation, path, source }
    };
    // A runner that was killed leaves its socket.
    if path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
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

/// Listens at an address of the loopback.
///
/// # Errors
/// The system's, or other hosts can reach that address.
pub fn bind_tcp(address: SocketAddr, token: Token) -> Result<(Door, SocketAddr), ApiError> {
    if !address.ip().is_loopback() {
        return Err(ApiError::Public(address));
    }
    let (listener, bound) = listen(address)?;
    Ok((Door::Tcp(listener, token), bound))
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
            let accept =
                |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(socket, _)| socket);
            serve_each(accept, router(Proof::Socket)).await;
        }
        Door::Tcp(listener, token) => {
            let listener = TcpListener::from_std(listener)?;
            let accept =
                |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(socket, _)| socket);
            serve_each(accept, router(Proof::Token(token))).await;
        }
        Door::Tls(listener, tls) => {
            let listener = TcpListener::from_std(listener)?;
            let router = router(Proof::Certificate(tls.names().clone()));
            serve_each_known(&listener, &tls.acceptor(), &router).await;
        }
    }
    Ok(())
}

async fn serve_each<Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut poll_accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<Socket>>,
    router: Router,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
        let Ok(socket) = poll_fn(&mut poll_accept).await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        tokio::spawn(converse(Patient::new(socket), router.clone(), place));
    }
}

/// Serves all that show a certificate. Until then they have places of their own, so that they take none from those who
/// have shown one. Where all of these are taken, who has been there longest goes: it is the one that says nothing.
async fn serve_each_known(listener: &TcpListener, acceptor: &TlsAcceptor, router: &Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut strangers: VecDeque<oneshot::Sender<Infallible>> = VecDeque::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        strangers.retain(|stranger| !stranger.is_closed());
        if strangers.len() == STRANGERS_MAX {
            strangers.pop_front();
        }
        let (stranger, sent_away) = oneshot::channel();
        strangers.push_back(stranger);
        let shown = acceptor.accept(Patient::new(socket)).into_fallible();
        let (room, router) = (Arc::clone(&room), router.clone());
        let let_in = async move {
            match shown.await {
                Ok(shown) => Some((shown, room.acquire_owned().await.ok()?)),
                Err((_, socket)) => turn_away(socket).await,
            }
        };
        tokio::spawn(async move {
            let let_in = tokio::select! {
                let_in = timeout(WELCOME_TIME_MAX, let_in) => let_in.ok().flatten(),
                _never_said = sent_away => None,
            };
            if let Some((socket, place)) = let_in {
                converse(socket, router, place).await;
            }
        });
    }
}

/// Ends a connection whose client has shown no right certificate. What it goes on to say is taken, since a system that
/// throws away what was not read resets the connection, and the client might never see the alert that tells why.
async fn turn_away<Nobody>(mut socket: impl AsyncRead + AsyncWrite + Unpin) -> Option<Nobody> {
    socket.shutdown().await.ok()?;
    tokio::io::copy(&mut socket, &mut tokio::io::sink()).await.ok()?;
    None
}

/// Answers one client, who keeps a place meanwhile.
async fn converse(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    place: OwnedSemaphorePermit,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(BUFFER_BYTES);
    // A client that is slow, gone or makes no sense is ignored.
    let _ended = http.serve_connection(TokioIo::new(socket), TowerToHyperService::new(router)).await;
    drop(place);
}

/// A connection whose other end has to take what it is sent within some time.
struct Patient<Socket> {
    socket: Socket,
    /// When patience ends, while something waits to be taken.
    until: Option<Pin<Box<Sleep>>>,
}

impl<Socket: AsyncWrite + Unpin> Patient<Socket> {
    fn new(socket: Socket) -> Self {
        Self { socket, until: None }
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
        ready!(self.until.get_or_insert_with(deadline).as_mut().poll(context));
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
        self.bounded(context, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bounded(context, AsyncWrite::poll_shutdown)
    }
}

/// The most connections of one door that are served at once; further ones wait.
const CONNECTIONS_MAX: usize = 64;
/// The most connections of one door that have not shown yet that they may be served.
const STRANGERS_MAX: usize = 256;
/// How long a client may take to show a certificate, and then wait for a place.
const WELCOME_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a client may take for the head of a request, and between two requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a client may leave what it is sent.
const STALL_TIME_MAX: Duration = Duration::from_secs(30);
/// What is kept of a request's head, and of an answer that is not taken yet.
const BUFFER_BYTES: usize = 32 << 10;
/// How long to pause when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_other_hosts_reach_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let token = Token::renewed(&directory.path().join("token")).unwrap();
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "[2001:db8::1]:80"] {
            let refused = bind_tcp(address.parse().unwrap(), token.clone()).unwrap_err();
            assert!(matches!(refused, ApiError::Public(_)), "{address}: {refused}");
        }
        bind_tcp("127.0.0.1:0".parse().unwrap(), token).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_left() {
        let (own, _theirs) = tokio::io::duplex(10);
        let error = Patient::new(own).write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
