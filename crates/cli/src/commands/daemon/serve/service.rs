//! Communication with the service manager: inherited sockets, readiness and watchdog messages.

use std::io;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use zmove_transport::Inherited;

/// Returns the number of inherited sockets. Their descriptors follow the standard streams.
pub(crate) fn sockets_count() -> usize {
    let count = std::env::var("LISTEN_FDS").ok();
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Returns the inherited sockets, or `None` if no socket was inherited.
///
/// # Errors
/// Returns an error if a socket is neither a listening TCP socket nor a UDP socket, or if two sockets have the same
/// kind.
pub(crate) fn sockets() -> io::Result<Option<Inherited>> {
    let mut handed = ListenFd::from_env();
    if handed.len() == 0 {
        return Ok(None);
    }
    let mut sockets = Inherited::default();
    for number in 0..handed.len() {
        // The library refuses to return a socket of the wrong kind. If the socket is not a TCP listener, it must be a
        // UDP socket.
        let doubled = match handed.take_tcp_listener(number) {
            Ok(tcp) => std::mem::replace(&mut sockets.tcp, tcp).is_some(),
            Err(_) => {
                std::mem::replace(&mut sockets.udp, handed.take_udp_socket(number)?).is_some()
            }
        };
        if doubled {
            return Err(io::Error::other(
                "the service manager passed two sockets of the same type; zmove accepts one of each",
            ));
        }
    }
    Ok(Some(sockets))
}

/// Reports that this process is ready.
pub(crate) fn ready() {
    notify_manager(&[NotifyState::Ready]);
}

/// Reports that this process is reloading its settings. The caller must call [`ready`] when the reload is complete.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify_manager(&[NotifyState::Reloading, now]),
        Err(_) => notify_manager(&[NotifyState::Reloading]),
    }
}

/// Reports that this process is stopping.
pub(crate) fn stopping() {
    notify_manager(&[NotifyState::Stopping]);
}

/// Reports a description of the state of this process, which the service manager shows to users.
pub(crate) fn status(text: &str) {
    notify_manager(&[NotifyState::Status(text)]);
}

/// Sends watchdog messages as often as the service manager demands, while the current runtime runs.
pub(crate) fn watch() {
    let mut micros = 0;
    if !sd_notify::watchdog_enabled(false, &mut micros) || micros == 0 {
        return;
    }
    let pause = Duration::from_micros(micros) / 2;
    tokio::spawn(async move {
        loop {
            notify_manager(&[NotifyState::Watchdog]);
            tokio::time::sleep(pause).await;
        }
    });
}

/// Sends a message to the service manager. Must be called in a multi-threaded runtime.
///
/// If the manager is slow to read, the socket's buffer fills up and the call blocks. The other tasks of this thread
/// then continue on another thread.
fn notify_manager(state: &[NotifyState<'_>]) {
    // If no service manager started this process, `notify` does nothing.
    let _nobody_listens = tokio::task::block_in_place(|| sd_notify::notify(false, state));
}
