//! A timer for sending connections with a finer resolution than tokio's.
//!
//! quinn paces its packets in bursts of two milliseconds and can send the next burst after 1.6 ms. A late burst loses
//! capacity. tokio's timers fire up to two milliseconds late, so about a quarter of the window would be unused. This
//! timer is a `timerfd`, which uses the kernel's high-resolution timers.

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

/// The tokio runtime with this timer.
#[derive(Debug)]
pub(super) struct FineRuntime;

impl Runtime for FineRuntime {
    fn new_timer(&self, due: Instant) -> Pin<Box<dyn AsyncTimer>> {
        match FineTimer::new(due) {
            Ok(timer) => Box::pin(timer),
            // The process has no free descriptor for the timer.
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

#[derive(Debug)]
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
        // Zero would disarm the timer.
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
                // The event belongs to an earlier deadline of this timer.
                Ok(mut come) => come.clear_ready(),
                // The runtime is shutting down.
                Err(_) => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn wait(timer: &mut Pin<Box<dyn AsyncTimer>>) {
        poll_fn(|context| timer.as_mut().poll(context)).await;
    }

    async fn is_ready(timer: &mut Pin<Box<dyn AsyncTimer>>) -> bool {
        poll_fn(|context| Poll::Ready(timer.as_mut().poll(context)))
            .await
            .is_ready()
    }

    #[tokio::test]
    async fn a_timer_is_not_early_and_comes_before_that_of_tokio() {
        let mut timer = FineRuntime.new_timer(Instant::now() + HOUR);
        let mut coarse = TokioRuntime.new_timer(Instant::now() + HOUR);
        // On a busy host, this thread may notice both timers late. So the test only requires a difference in a few
        // rounds.
        let mut earlier = 0;
        for round in 0..1_000 {
            let due = Instant::now() + Duration::from_micros(1_000 + 37 * (round % 60));
            coarse.as_mut().reset(due);
            timer.as_mut().reset(due);
            wait(&mut timer).await;
            assert!(Instant::now() >= due, "it is early");
            earlier += u32::from(!is_ready(&mut coarse).await);
            if earlier == 20 {
                return;
            }
        }
        panic!("only {earlier} came before those of tokio");
    }

    #[tokio::test]
    async fn a_timer_that_is_put_off_comes_later() {
        let mut timer = FineRuntime.new_timer(Instant::now() + HOUR);
        assert!(!is_ready(&mut timer).await);
        timer
            .as_mut()
            .reset(Instant::now() + Duration::from_millis(5));
        let due = Instant::now() + Duration::from_millis(30);
        timer.as_mut().reset(due);
        wait(&mut timer).await;
        assert!(Instant::now() >= due);
    }

    const HOUR: Duration = Duration::from_secs(3600);
}
