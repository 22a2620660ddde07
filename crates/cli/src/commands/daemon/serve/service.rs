//! The exchange with a service manager: sockets, readiness, signs of life.

use std::io;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use zmove_transport::Inherited;

/// The number of sockets that were handed over, which have the descriptors after the standard streams.
pub(crate) fn sockets_count() -> usize {
    let count = std::env::var("LISTEN_FDS").ok();
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The sockets that were handed over; `None` when there are none.
///
/// # Errors
/// One of them is neither a listening TCP socket nor a UDP socket, or there are two of a kind.
pub(crate) fn sockets() -> io::Result<Option<Inherited>> {
    let mut handed = ListenFd::from_env();
    if handed.len() == 0 {
        return Ok(None);
    }
    let mut sockets = Inherited::default();
    for number in 0..handed.len() {
        // The library reveals the kind of a socket by refusing the other.
        let doubled = match handed.take_tcp_listener(number) {
            Ok(tcp) => std::mem::replace(&mut sockets.tcp, tcp).is_some(),
            Err(_) => {
                std::mem::replace(&mut sockets.udp, handed.take_udp_socket(number)?).is_some()
            }
        };
        if doubled {
            return Err(io::Error::other(
                "two sockets of a kind were handed over; zmove takes one of each",
            ));
        }
    }
    Ok(Some(sockets))
}

/// Reports that this process serves.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Reports that this process reads its settings again; [`ready`] follows.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// Reports that this process is about to end.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells the service manager's users in words what this process does.
pub(crate) fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// Gives signs of life as often as the service manager asks for them, as long as the calling runtime runs.
pub(crate) fn watch() {
    let mut micros = 0;
    if !sd_notify::watchdog_enabled(false, &mut micros) || micros == 0 {
        return;
    }
    let pause = Duration::from_micros(micros) / 2;
    tokio::spawn(async move {
        loop {
            tell(&[NotifyState::Watchdog]);
            tokio::time::sleep(pause).await;
        }
    });
}

/// Sends a message to the service manager. Must be called in a runtime of several threads.
///
/// A manager that is busy lets messages pile up, and the next one blocks until it reads. The tasks of this thread
/// continue on another one meanwhile.
fn tell(state: &[NotifyState<'_>]) {
    // Without a service manager nobody listens.
    let _nobody_listens = tokio::task::block_in_place(|| sd_notify::notify(false, state));
}
