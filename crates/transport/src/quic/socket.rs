//! The UDP socket of an endpoint. It wraps quinn's socket and adapts the size of system calls to UDP and to the CPU
//! cache.
//!
//! quinn passes up to ten datagrams to the kernel in one call. With jumbo frames, ten datagrams exceed the maximum size
//! of a UDP send. In the other direction, quinn receives up to 32 batches of 64 KiB in one call, which do not fit into
//! the innermost CPU cache.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};

/// Wraps `socket`. Must be called in a tokio runtime, which runs the socket.
pub(super) fn wrap(socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    let socket = TokioRuntime.wrap_udp_socket(socket)?;
    Ok(Arc::new(Batched {
        socket,
        datagram_bytes: AtomicUsize::new(1),
    }))
}

#[derive(Debug)]
struct Batched {
    socket: Arc<dyn AsyncUdpSocket>,
    /// Size of the largest datagram that was sent in a batch, in bytes.
    datagram_bytes: AtomicUsize,
}

impl AsyncUdpSocket for Batched {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(datagram_bytes) = transmit.segment_size else {
            return self.socket.try_send(transmit);
        };
        self.datagram_bytes
            .fetch_max(datagram_bytes, Ordering::Relaxed);
        let bytes_at_once = UDP_BYTES_MAX / datagram_bytes * datagram_bytes;
        if transmit.contents.len() <= bytes_at_once {
            return self.socket.try_send(transmit);
        }
        // If the kernel accepts only some of the datagrams, quinn sends all of them again, and the peer drops the
        // duplicates.
        transmit
            .contents
            .chunks(bytes_at_once)
            .try_for_each(|contents| {
                let segment_size = (contents.len() > datagram_bytes).then_some(datagram_bytes);
                let Transmit {
                    destination,
                    ecn,
                    src_ip,
                    ..
                } = *transmit;
                self.socket.try_send(&Transmit {
                    destination,
                    ecn,
                    contents,
                    segment_size,
                    src_ip,
                })
            })
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let at_once = buffers.len().min(BATCHES_AT_ONCE);
        self.socket
            .poll_recv(context, &mut buffers[..at_once], meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        let fitting = UDP_BYTES_MAX / self.datagram_bytes.load(Ordering::Relaxed);
        self.socket.max_transmit_segments().min(fitting)
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }
}

/// Maximum number of bytes of one UDP send over IPv4.
const UDP_BYTES_MAX: usize = 65_507;
/// Maximum number of batches received in one call.
const BATCHES_AT_ONCE: usize = 8;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const JUMBO: usize = 8_952;

    fn socket() -> Arc<dyn AsyncUdpSocket> {
        wrap(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap()
    }

    fn transmit(destination: SocketAddr, contents: &[u8]) -> Transmit<'_> {
        Transmit {
            destination,
            ecn: None,
            contents,
            segment_size: Some(JUMBO),
            src_ip: None,
        }
    }

    #[tokio::test]
    async fn a_batch_too_large_for_one_send_arrives_and_the_next_is_smaller() {
        let (sender, receiver) = (socket(), socket());
        let contents: Vec<u8> = (0..10).flat_map(|number| [number; JUMBO]).collect();
        assert!(
            sender.max_transmit_segments() >= 10,
            "{}",
            sender.max_transmit_segments()
        );
        let mut poller = Arc::clone(&sender).create_io_poller();
        poll_fn(|context| poller.as_mut().poll_writable(context))
            .await
            .unwrap();
        sender
            .try_send(&transmit(receiver.local_addr().unwrap(), &contents))
            .unwrap();
        assert_eq!(sender.max_transmit_segments(), 7);
        let mut buffers = vec![vec![0; 1 << 16]; 2];
        let mut arrived = Vec::new();
        while arrived.len() < contents.len() {
            let mut meta = [RecvMeta::default(); 2];
            let mut slices: Vec<_> = buffers
                .iter_mut()
                .map(|buffer| IoSliceMut::new(buffer))
                .collect();
            let batches = poll_fn(|context| receiver.poll_recv(context, &mut slices, &mut meta));
            let batches = timeout(Duration::from_secs(20), batches)
                .await
                .expect("nothing is lost")
                .unwrap();
            for (buffer, meta) in buffers.iter().zip(&meta[..batches]) {
                assert_eq!(meta.stride, JUMBO);
                arrived.extend_from_slice(&buffer[..meta.len]);
            }
        }
        assert_eq!(arrived, contents);
    }
}
