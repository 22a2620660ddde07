//! A socket that passes data to TLS one complete record at a time.
//!
//! A lane takes over a connection from rustls. rustls returns its keys, but not the bytes that it has read from the
//! socket. So this type passes only the bytes of the current record to rustls and keeps the bytes after it.
//! **Invariant:** no part of a record is passed on before the complete record was received, unless the socket has
//! ended.
//!
//! The length of a record is authenticated only together with the complete record. If a bit error increases the length,
//! both sides may wait for data forever. So a record that stays incomplete for too long counts as a lost connection.

use std::{
    future::Future as _,
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use super::StreamSocket;
use crate::path::Transport;

const HEADER_BYTES: usize = 5;
/// Maximum body length in any version of TLS, which is also the maximum that rustls accepts.
const BODY_BYTES_MAX: usize = (1 << 14) + 2048;

/// A socket whose reads return only complete records.
#[derive(Debug)]
pub(super) struct WholeRecords {
    socket: StreamSocket,
    /// Received bytes that have not been returned. Has room for at least one record.
    arrived: Vec<u8>,
    filled: usize,
    /// Number of received bytes that may be returned.
    whole: usize,
    /// The time at which an incomplete record counts as a lost connection.
    overdue_at: Option<Pin<Box<Sleep>>>,
}

impl WholeRecords {
    pub(super) fn new(socket: StreamSocket) -> Self {
        Self {
            socket,
            arrived: vec![0; HEADER_BYTES + BODY_BYTES_MAX],
            filled: 0,
            whole: 0,
            overdue_at: None,
        }
    }

    /// Returns the socket and the bytes received after the last returned record.
    pub(super) fn into_parts(mut self) -> io::Result<(StreamSocket, Vec<u8>)> {
        if self.whole > 0 {
            return Err(io::Error::other("a TLS record was read only in part"));
        }
        self.arrived.truncate(self.filled);
        Ok((self.socket, self.arrived))
    }

    /// Returns the transport below TLS.
    pub(super) const fn transport(&self) -> Transport {
        self.socket.transport()
    }

    /// Returns available bytes, as many as fit into `out`.
    fn copy_out(&mut self, out: &mut ReadBuf<'_>) {
        let given = self.whole.min(out.remaining());
        out.put_slice(&self.arrived[..given]);
        self.arrived.copy_within(given..self.filled, 0);
        self.filled -= given;
        self.whole -= given;
    }

    /// Resolves when the rest of an incomplete record is overdue. There is no time limit between two records.
    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.filled == 0 {
            return Poll::Pending;
        }
        let overdue_at = self
            .overdue_at
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(UNFINISHED_MAX)));
        ready!(overdue_at.as_mut().poll(context));
        let text =
            "the rest of a TLS record did not arrive; its length may have been damaged in transit";
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    /// Receives more bytes. At the end of the socket, all received bytes may be returned, even if the last record is
    /// incomplete.
    fn poll_arrival(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut room = ReadBuf::new(&mut self.arrived[self.filled..]);
        ready!(Pin::new(&mut self.socket).poll_read(context, &mut room))?;
        let taken = room.filled().len();
        self.filled += taken;
        self.whole = if taken == 0 {
            self.filled
        } else {
            whole_bytes(&self.arrived[..self.filled])
        };
        Poll::Ready(Ok(()))
    }
}

/// Maximum wait for the rest of a record. It equals the time after which a silent control connection counts as lost.
const UNFINISHED_MAX: Duration = Duration::from_secs(60);

/// Returns the length of the first record if it is complete. Bytes that cannot be a record are passed on unchanged, so
/// that rustls reports the error.
#[expect(clippy::big_endian_bytes, reason = "TLS is big-endian")]
fn whole_bytes(arrived: &[u8]) -> usize {
    let Some(&[content_type, major, _, high, low]) = arrived.first_chunk::<HEADER_BYTES>() else {
        return 0;
    };
    let body = usize::from(u16::from_be_bytes([high, low]));
    if !matches!(content_type, 20..=24) || major != 3 || body > BODY_BYTES_MAX {
        return arrived.len();
    }
    let record = HEADER_BYTES + body;
    if record <= arrived.len() { record } else { 0 }
}

impl AsFd for WholeRecords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for WholeRecords {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.whole == 0 {
            self.whole = whole_bytes(&self.arrived[..self.filled]);
        }
        while self.whole == 0 {
            let before = self.filled;
            match self.poll_arrival(context) {
                Poll::Ready(arrived) => arrived?,
                Poll::Pending => return self.poll_overdue(context).map(Err),
            }
            self.overdue_at = None;
            if self.filled == before {
                break;
            }
        }
        self.copy_out(out);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WholeRecords {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    async fn connected() -> (TcpStream, WholeRecords) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap());
        let (peer, accepted) = tokio::join!(peer, listener.accept());
        let accepted = StreamSocket::Tcp(accepted.unwrap().0);
        (peer.unwrap(), WholeRecords::new(accepted))
    }

    fn record(body_bytes: u8) -> Vec<u8> {
        let body = (0..body_bytes).map(|index| index % 251);
        [23, 3, 3, 0, body_bytes].into_iter().chain(body).collect()
    }

    #[tokio::test]
    async fn records_are_given_one_by_one_and_the_rest_stays() {
        let (mut peer, mut whole) = connected().await;
        let records = [record(0), record(200), record(7), record(9)];
        let (sent, rest) = (records.concat(), &records[3][..6]);
        peer.write_all(&sent[..sent.len() - 8]).await.unwrap();
        let mut out = [0; 4096];
        for record in &records[..3] {
            let given = whole.read(&mut out).await.unwrap();
            assert_eq!(&out[..given], record);
        }
        // The last record is not complete.
        tokio::select! {
            biased;
            given = whole.read(&mut out) => panic!("{given:?}"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(whole.into_parts().unwrap().1, rest);
    }

    /// A bit error has increased the length of the record, and no other record follows.
    #[tokio::test(start_paused = true)]
    async fn record_that_does_not_end_is_a_lost_connection() {
        let (mut peer, mut whole) = connected().await;
        let mut out = [0; 4096];
        let sent = [&record(7)[..], &record(200)[..100]].concat();
        peer.write_all(&sent).await.unwrap();
        // The bytes have been received before the timers below start.
        assert_eq!(whole.read(&mut out).await.unwrap(), HEADER_BYTES + 7);
        let read = tokio::time::timeout(100 * UNFINISHED_MAX, whole.read(&mut out)).await;
        let error = read.expect("it does not wait for ever").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(crate::control::is_loss(&error));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_between_two_records_is_no_loss() {
        let (mut peer, mut whole) = connected().await;
        let mut out = [0; 4096];
        peer.write_all(&record(200)).await.unwrap();
        assert_eq!(whole.read(&mut out).await.unwrap(), HEADER_BYTES + 200);
        let silence = tokio::time::timeout(100 * UNFINISHED_MAX, whole.read(&mut out)).await;
        assert!(silence.is_err(), "{silence:?}");
        peer.write_all(&record(7)).await.unwrap();
        assert_eq!(whole.read(&mut out).await.unwrap(), HEADER_BYTES + 7);
    }

    #[tokio::test]
    async fn record_that_was_given_in_part_is_no_place_to_stop() {
        let (mut peer, mut whole) = connected().await;
        peer.write_all(&record(200)).await.unwrap();
        whole.read_exact(&mut [0; 100]).await.unwrap();
        assert!(whole.into_parts().is_err());
    }

    #[tokio::test]
    async fn what_is_no_record_or_never_ends_is_given_as_it_is() {
        for sent in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            vec![23, 3, 3, 0xff, 0xff, 0],
            record(200)[..100].to_vec(),
        ] {
            let (mut peer, mut whole) = connected().await;
            peer.write_all(&sent).await.unwrap();
            peer.shutdown().await.unwrap();
            let mut given = Vec::new();
            whole.read_to_end(&mut given).await.unwrap();
            assert_eq!(given, sent);
        }
    }
}
