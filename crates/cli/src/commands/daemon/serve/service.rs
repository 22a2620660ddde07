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

/// Returns the inherited sockets, or `None` if there are none.
///
/// # Errors
/// Returns an error if a socket is neither a listening TCP socket nor a UDP socket, or if there are two sockets of the
/// same kind.
pub(crate) fn sockets() -> io::Result<Option<Inherited>> {
    let mut handed = ListenFd::from_env();
    if handed.len() == 0 {
        return Ok(None);
    }
    let mut sockets = Inherited::default();
    for number in 0..handed.len() {
        // The kind of a socket is found by trying: the library refuses a socket of the wrong kind.
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

/// Reports that this process is reloading its settings. A call of [`ready`] follows.
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

/// Reports the state of this process in words, for users of the service manager.
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
/// If the manager is busy, messages pile up, and the next one blocks until the manager reads. Other tasks of this
/// thread then continue on another thread.
fn notify_manager(state: &[NotifyState<'_>]) {
    // Without a service manager, the message is ignored.
    let _nobody_listens = tokio::task::block_in_place(|| sd_notify::notify(false, state));
}
