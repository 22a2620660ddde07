//! A timer for the connections that send, finer than tokio's.
//!
//! quinn paces what it sends in bursts of two milliseconds, which it may send again after 1.6, and what is not sent in
//! time is not made up for. tokio's timers come up to two milliseconds late, and a window was then hardly used by three
//! quarters. This one is a `timerfd`, of the kernel's high-resolution timers.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::socket;

/// tokio, with this timer.
#[derive(Debug)]
pub(super) struct FineRuntime;

impl Runtime for FineRuntime {
    fn new_timer(&self, due: Instant) -> Pin<Box<dyn AsyncTimer>> {
        match FineTimer::new(due) {
            Ok(timer) => Box::pin(timer),
            // there is no descriptor left
            Err(_) => TokioRuntime.new_timer(due),
        }
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        socket::wrap(socket)
    }
}

struct FineTimer {
    fd: AsyncFd<OwnedFd>,
    due: Instant,
}

impl FineTimer {
    fn new(due: Instant) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "it is for types that may change their descriptor; an OwnedFd does not"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        let timer = Self { fd, due };
        timer.arm()?;
        Ok(timer)
    }

    fn arm(&self) -> io::Result<()> {
        // zero would stop it
        let left = self
            .due
            .saturating_duration_since(Instant::now())
            .max(Duration::from_nanos(1));
        let it_value = Timespec::try_from(left).map_err(io::Error::other)?;
        let it_interval = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        timerfd_settime(
            &self.fd,
            TimerfdTimerFlags::empty(),
            &Itimerspec {
                it_interval,
                it_value,
            },
        )?;
        Ok(())
    }
}

impl AsyncTimer for FineTimer {
    fn reset(mut self: Pin<&mut Self>, due: Instant) {
        self.due = due;
        self.arm().expect("a timer can be set");
    }

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        while Instant::now() < self.due {
            match ready!(self.fd.poll_read_ready(context)) {
                // of an earlier time
                Ok(mut come) => come.clear_ready(),
                // the runtime ends
                Err(_) => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for FineTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FineTimer")
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// How late a timer is that is set for this time from now on.
    async fn late(timer: &mut Pin<Box<dyn AsyncTimer>>, time: Duration) -> Duration {
        let due = Instant::now() + time;
        timer.as_mut().reset(due);
        poll_fn(|context| timer.as_mut().poll(context)).await;
        Instant::now()
            .checked_duration_since(due)
            .expect("it is not early")
    }

    #[tokio::test]
    async fn a_timer_is_not_early_and_hardly_late() {
        let mut timer = FineRuntime.new_timer(Instant::now() + Duration::from_secs(60));
        let mut lates = Vec::new();
        for micros in (0..60).map(|round| 1_000 + 37 * round) {
            lates.push(late(&mut timer, Duration::from_micros(micros)).await);
        }
        lates.sort_unstable();
        // other programs of a busy host may hold up some
        assert!(lates[30] < Duration::from_micros(400), "{lates:?}");
    }

    #[tokio::test]
    async fn a_timer_that_is_put_off_comes_later() {
        let mut timer = FineRuntime.new_timer(Instant::now() + Duration::from_millis(5));
        let ready = poll_fn(|context| Poll::Ready(timer.as_mut().poll(context))).await;
        assert!(ready.is_pending());
        let due = Instant::now() + Duration::from_millis(30);
        timer.as_mut().reset(due);
        poll_fn(|context| timer.as_mut().poll(context)).await;
        assert!(Instant::now() >= due);
    }
}
