//! The kernel's statistics of a connection: `TCP_INFO`, see tcp(7) and `struct tcp_info` in `linux/tcp.h`.
//!
//! Newer kernels append fields to the structure, so each field is read from the bytes that the kernel has filled.
//! **Invariant:** a field that an older kernel does not fill is `None`, never a meaningless zero.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::sys;

/// The state of a connection. Fields that this kernel does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Whether the connection is established and neither side has closed it.
    pub established: Option<bool>,
    /// Smoothed round-trip time.
    pub round_trip: Option<Duration>,
    /// Shortest round-trip time in the window set by `net.ipv4.tcp_min_rtt_wlen`.
    pub round_trip_min: Option<Duration>,
    /// Maximum number of data bytes in a segment.
    pub segment_bytes: Option<u32>,
    /// Congestion window, in segments.
    pub congestion_window_segments: Option<u32>,
    /// Time since data was last sent, with a resolution of 1 ms.
    pub since_data_sent: Option<Duration>,
    /// Time since the last acknowledgment from the peer, with a resolution of 1 ms.
    pub since_ack_received: Option<Duration>,
    /// Number of retransmitted segments.
    pub segments_retransmitted: Option<u32>,
    /// Bytes acknowledged by the peer.
    pub bytes_acked: Option<u64>,
    /// Bytes received from the peer.
    pub bytes_received: Option<u64>,
    /// Bytes sent, including retransmissions.
    pub bytes_sent: Option<u64>,
    /// Bytes retransmitted.
    pub bytes_retransmitted: Option<u64>,
    /// Bytes written to the socket but not yet sent.
    pub bytes_unsent: Option<u32>,
    /// Most recent rate at which data was delivered to the peer, in bytes per second.
    pub delivery_rate: Option<u64>,
    /// Whether `delivery_rate` was limited by the application, which wrote too little.
    pub delivery_rate_app_limited: Option<bool>,
    /// Time during which data was waiting to be sent or acknowledged. Includes `receive_window_limited` and
    /// `send_buffer_limited`.
    pub busy: Option<Duration>,
    /// Time during which sending was limited by the peer's receive window.
    pub receive_window_limited: Option<Duration>,
    /// Time during which sending was limited by the size of the local send buffer.
    pub send_buffer_limited: Option<Duration>,
}

/// Returns the kernel's statistics of a connection.
///
/// # Errors
/// Returns an error if the socket is not a TCP socket.
pub fn tcp_info(socket: &impl AsFd) -> io::Result<TcpInfo> {
    let mut room = [0; ROOM_BYTES];
    let filled = sys::bytes(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut room)?;
    Ok(TcpInfo::parse(&room[..filled]))
}

impl TcpInfo {
    fn parse(bytes: &[u8]) -> Self {
        let micros_32 = |at| word(bytes, at).map(|micros| Duration::from_micros(u64::from(micros)));
        let micros_64 = |at| long(bytes, at).map(Duration::from_micros);
        // Kernels without `delivery_rate` have padding instead of this bit.
        let flags = long(bytes, DELIVERY_RATE).and_then(|_| bytes.get(FLAGS));
        Self {
            established: bytes.first().map(|state| *state == ESTABLISHED),
            round_trip: micros_32(ROUND_TRIP),
            round_trip_min: micros_32(ROUND_TRIP_MIN)
                .filter(|time| time.as_micros() < u128::from(u32::MAX)),
            segment_bytes: word(bytes, SEGMENT_BYTES),
            congestion_window_segments: word(bytes, CONGESTION_WINDOW),
            since_data_sent: word(bytes, LAST_DATA_SENT)
                .map(|millis| Duration::from_millis(u64::from(millis))),
            since_ack_received: word(bytes, LAST_ACK_RECEIVED)
                .map(|millis| Duration::from_millis(u64::from(millis))),
            segments_retransmitted: word(bytes, TOTAL_RETRANSMITS),
            bytes_acked: long(bytes, BYTES_ACKED),
            bytes_received: long(bytes, BYTES_RECEIVED),
            bytes_sent: long(bytes, BYTES_SENT),
            bytes_retransmitted: long(bytes, BYTES_RETRANSMITTED),
            bytes_unsent: word(bytes, BYTES_UNSENT),
            delivery_rate: long(bytes, DELIVERY_RATE),
            delivery_rate_app_limited: flags.map(|flags| flags & 1 != 0),
            busy: micros_64(BUSY),
            receive_window_limited: micros_64(RECEIVE_WINDOW_LIMITED),
            send_buffer_limited: micros_64(SEND_BUFFER_LIMITED),
        }
    }
}

#[expect(
    clippy::host_endian_bytes,
    reason = "the kernel of this host wrote them"
)]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u32::from_ne_bytes(*word))
}

#[expect(
    clippy::host_endian_bytes,
    reason = "the kernel of this host wrote them"
)]
fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|long| u64::from_ne_bytes(*long))
}

/// Size of the buffer for the structure, in bytes. Current kernels fill less.
const ROOM_BYTES: usize = 512;

/// The value of the first byte (the state) for `TCP_ESTABLISHED`. The constants below are offsets, which are stable
/// because the kernel only appends fields.
const ESTABLISHED: u8 = 1;
const FLAGS: usize = 7;
const SEGMENT_BYTES: usize = 16;
const LAST_DATA_SENT: usize = 44;
const LAST_ACK_RECEIVED: usize = 56;
const ROUND_TRIP: usize = 68;
const CONGESTION_WINDOW: usize = 80;
const TOTAL_RETRANSMITS: usize = 100;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
const BYTES_UNSENT: usize = 144;
const ROUND_TRIP_MIN: usize = 148;
const DELIVERY_RATE: usize = 160;
const BUSY: usize = 168;
const RECEIVE_WINDOW_LIMITED: usize = 176;
const SEND_BUFFER_LIMITED: usize = 184;
const BYTES_SENT: usize = 200;
const BYTES_RETRANSMITTED: usize = 208;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    /// Returns the statistics of a connection on which 1000 bytes were sent and one byte was received.
    fn info_of_an_exchange() -> TcpInfo {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[7; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        // The packet with this byte also acknowledges the data received before it.
        far.write_all(&[1]).unwrap();
        near.read_exact(&mut [0]).unwrap();
        tcp_info(&near).unwrap()
    }

    #[test]
    fn the_kernel_counts_what_was_sent() {
        // If the host stalls for 200 ms, the kernel may retransmit the bytes. The test then repeats the exchange.
        let info = std::iter::repeat_with(info_of_an_exchange)
            .take(10)
            .find(|info| info.segments_retransmitted == Some(0))
            .unwrap();
        assert!(
            info.round_trip.is_some_and(|time| !time.is_zero()),
            "{info:?}"
        );
        assert!(
            info.congestion_window_segments
                .is_some_and(|segments| segments > 0),
            "{info:?}"
        );
        assert!(
            info.segment_bytes
                .is_some_and(|bytes| (500..=65_535).contains(&bytes)),
            "{info:?}"
        );
        assert!(
            info.since_data_sent
                .is_some_and(|time| time < Duration::from_secs(60)),
            "{info:?}"
        );
        assert!(
            info.bytes_acked
                .is_none_or(|bytes| (1000..=1001).contains(&bytes)),
            "{info:?}"
        );
        assert!(
            info.bytes_received.is_none_or(|bytes| bytes == 1),
            "{info:?}"
        );
        assert!(
            info.bytes_sent.is_none_or(|bytes| bytes == 1000),
            "{info:?}"
        );
        assert_eq!(info.bytes_retransmitted.unwrap_or(0), 0);
        assert_eq!(info.bytes_unsent.unwrap_or(0), 0);
    }

    #[test]
    fn what_an_old_kernel_does_not_fill_is_not_known() {
        let bytes = [1; ROOM_BYTES];
        let old = TcpInfo::parse(&bytes[..104]);
        assert_eq!(old.segments_retransmitted, Some(0x0101_0101));
        assert_eq!(
            (old.bytes_acked, old.busy, old.bytes_sent),
            (None, None, None)
        );
        assert_eq!(
            (old.delivery_rate, old.delivery_rate_app_limited),
            (None, None)
        );
        let whole = TcpInfo::parse(&bytes);
        assert_eq!(whole.bytes_sent, Some(0x0101_0101_0101_0101));
        assert_eq!(whole.delivery_rate_app_limited, Some(true));
        assert_eq!(TcpInfo::parse(&[]), TcpInfo::default());
    }

    #[test]
    fn a_socket_of_another_kind_is_an_error() {
        assert!(tcp_info(&UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
