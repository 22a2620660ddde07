//! Tests of pings between messages, over a pair of connected streams.

use std::sync::atomic::{AtomicUsize, Ordering};

use zmove_types::TransferId;
use zmove_wire::{Role, ToReceiver, encode_message, encode_ping};

use super::*;

type Control = (ControlReader, ControlWriter);

fn pair(room: usize) -> (Control, Control) {
    let (near, far) = tokio::io::duplex(room);
    (control_pair(near), control_pair(far))
}

fn greeting() -> Greeting {
    Greeting::new(Role::Control, TransferId([1; 16]))
}

fn message(names: usize) -> Vec<u8> {
    encode_message(&ToReceiver::LaneLost {
        items: vec![300; names],
    })
}

/// Sends a ping and waits for its pong.
async fn ping(pinger: &Pinger, value: u64) {
    pinger.ping(value);
    let mut pongs = pinger.pongs();
    let heard = pongs.wait_for(|pong| *pong == Some(value)).await;
    assert_eq!(*heard.unwrap(), Some(value));
}

#[tokio::test]
async fn pings_are_answered_while_the_session_reads_nothing() {
    let (mut near, mut far) = pair(1 << 10);
    near.1.greet(&greeting()).await.unwrap();
    far.1.greet(&greeting()).await.unwrap();
    near.0.greeting().await.unwrap();
    far.0.greeting().await.unwrap();
    // One side sends an opening, which waits in the queue. Then both sides send pings.
    near.1.send(&message(9)).await.unwrap();
    for value in [0, 7, u64::MAX] {
        ping(&near.1.pinger(), value).await;
        ping(&far.1.pinger(), value).await;
    }
    let heard = far.0.receive().await.unwrap().unwrap();
    assert_eq!(heard, message(9)[4..]);
}

#[tokio::test]
async fn a_ping_is_left_without_an_answer_if_anything_says_no() {
    let (mut near, mut far) = pair(1 << 10);
    let first = AtomicUsize::new(0);
    let second = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&second);
    far.0
        .answer_if(move || first.fetch_add(1, Ordering::Relaxed) > 0);
    far.0
        .answer_if(move || asked.fetch_add(1, Ordering::Relaxed) > 0);
    near.1.greet(&greeting()).await.unwrap();
    far.1.greet(&greeting()).await.unwrap();
    near.0.greeting().await.unwrap();
    far.0.greeting().await.unwrap();
    let mut pongs = near.1.pinger().pongs();
    for value in 1..=3 {
        near.1.send(&encode_ping(value)).await.unwrap();
    }
    let pong = pongs.wait_for(Option::is_some).await.unwrap();
    assert_eq!(*pong, Some(3));
    assert_eq!(
        second.load(Ordering::Relaxed),
        2,
        "one ping was not shown to it"
    );
}

#[tokio::test]
async fn no_pong_goes_before_the_greeting() {
    let (mut near, mut far) = pair(1 << 10);
    near.1.greet(&greeting()).await.unwrap();
    near.1.send(&encode_ping(5)).await.unwrap();
    far.0.greeting().await.unwrap();
    // Gives the other task a chance to read the ping first.
    tokio::task::yield_now().await;
    far.1.greet(&greeting()).await.unwrap();
    let mut pongs = near.1.pinger().pongs();
    assert_eq!(near.0.greeting().await.unwrap(), greeting());
    pongs.wait_for(|pong| *pong == Some(5)).await.unwrap();
}

/// The test moves the writer to another task and sends pings from the original task.
#[tokio::test]
async fn a_pinger_outlives_the_handing_over_of_its_writer_and_sends_nothing_before_the_greeting() {
    let (mut near, mut far) = pair(1 << 10);
    let pinger = near.1.pinger();
    pinger.ping(1);
    let greet = async |control: &mut Control| {
        control.1.greet(&greeting()).await.unwrap();
        assert_eq!(control.0.greeting().await.unwrap(), greeting());
    };
    tokio::join!(greet(&mut near), greet(&mut far));
    let mut pongs = pinger.pongs();
    pongs.wait_for(|pong| *pong == Some(1)).await.unwrap();
    let writing = tokio::spawn(async move { near.1.send(&message(9)).await.map(|()| near.1) });
    tokio::spawn(async move { ping(&pinger, 2).await })
        .await
        .unwrap();
    drop(writing.await.unwrap().unwrap());
    let heard = far.0.receive().await.unwrap().unwrap();
    assert_eq!(heard, message(9)[4..]);
}

/// Two threads may call the pinger in a different order than that of their values.
#[tokio::test]
async fn a_ping_that_waits_is_not_replaced_by_one_with_a_lower_value() {
    let (mut near, mut far) = pair(1 << 10);
    let pinger = near.1.pinger();
    pinger.ping(2);
    pinger.ping(1);
    let greet = async |control: &mut Control| {
        control.1.greet(&greeting()).await.unwrap();
        assert_eq!(control.0.greeting().await.unwrap(), greeting());
    };
    tokio::join!(greet(&mut near), greet(&mut far));
    let mut pongs = pinger.pongs();
    let pong = pongs.wait_for(Option::is_some).await.unwrap();
    assert_eq!(*pong, Some(2));
}

/// Two peers that stopped reading while they write would deadlock.
#[tokio::test]
async fn pings_are_answered_between_peers_who_both_send_more_than_fits() {
    let (near, far) = pair(64);
    let talk = |(mut reader, mut writer): Control| async move {
        let pinger = writer.pinger();
        let sending = async {
            for value in 0..100 {
                writer.send(&message(100)).await.unwrap();
                pinger.ping(value);
            }
        };
        let receiving = async {
            for _ in 0..100 {
                assert_eq!(reader.receive().await.unwrap().unwrap(), message(100)[4..]);
            }
            ping(&pinger, 100).await;
        };
        tokio::join!(sending, receiving);
    };
    tokio::join!(talk(near), talk(far));
}

#[tokio::test]
async fn a_long_message_is_read_when_it_is_asked_for_and_within_its_limit() {
    let (mut near, mut far) = pair(1 << 10);
    let long = encode_message(&vec![7_u8; 100 << 10]);
    let sent = long.clone();
    let sending = tokio::spawn(async move {
        near.1.send(&sent).await.unwrap();
        near.1.send(&sent).await
    });
    let heard = far.0.listen().receive_within(200 << 10).await.unwrap();
    assert_eq!(heard.unwrap(), long[4..]);
    let error = far.0.receive_within(64 << 10).await.unwrap_err();
    assert!(
        matches!(error, ControlError::Wire(WireError::OverLimit { .. })),
        "{error}"
    );
    drop(far);
    assert!(sending.await.unwrap().is_err());
}

#[tokio::test]
async fn a_ping_that_comes_after_the_end_of_a_connection_has_no_pong() {
    let (mut near, mut far) = pair(16);
    let greeting = greeting();
    let (sent, heard) = tokio::join!(near.1.greet(&greeting), far.0.greeting());
    sent.unwrap();
    heard.unwrap();
    let (sent, heard) = tokio::join!(far.1.greet(&greeting), near.0.greeting());
    sent.unwrap();
    heard.unwrap();
    let pinger = far.1.pinger();
    ping(&pinger, 3).await;
    drop(near);
    pinger.ping(4);
    assert_eq!(far.0.receive().await.unwrap(), None);
    assert_eq!(*pinger.pongs().borrow(), Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_is_lost() {
    let (near, _far) = tokio::io::duplex(16);
    let mut near = control_pair(near);
    let began = tokio::time::Instant::now();
    let error = near.1.send(&message(1000)).await.unwrap_err();
    assert!(matches!(error, ControlError::Unread), "{error}");
    assert!(error.is_lost());
    assert_eq!(began.elapsed(), CONTROL_SILENCE_MAX);
    let error = near.1.send(b"more").await.unwrap_err();
    assert!(matches!(error, ControlError::Closed), "{error}");
}

/// Shutting down the sending direction is a write too, so it has a time limit.
#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_no_end_is_lost() {
    struct Stuck;
    impl AsyncRead for Stuck {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Pending
        }
    }
    impl AsyncWrite for Stuck {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &[u8],
        ) -> std::task::Poll<io::Result<usize>> {
            std::task::Poll::Pending
        }
        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Pending
        }
        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Pending
        }
    }
    let error = control_pair(Stuck).1.finish().await.unwrap_err();
    assert!(matches!(error, ControlError::Unread), "{error}");
}

/// Each ping is answered, but the peer reads no answers.
#[tokio::test(start_paused = true)]
async fn a_peer_that_pings_and_does_not_read_is_lost_though_the_session_is_silent() {
    let (near, far) = tokio::io::duplex(16);
    let mut near = control_pair(near);
    let (mut unread, mut far) = tokio::io::split(far);
    let greeting = greeting();
    let ours = greeting.encode();
    let (sent, heard) = tokio::join!(far.write_all(&ours), near.0.greeting());
    sent.unwrap();
    heard.unwrap();
    let mut theirs = [0; Greeting::BYTES];
    let (sent, heard) = tokio::join!(near.1.greet(&greeting), unread.read_exact(&mut theirs));
    sent.unwrap();
    heard.unwrap();
    let began = tokio::time::Instant::now();
    for value in 0..10 {
        far.write_all(&encode_ping(value)).await.unwrap();
        // By now, the ping has been read and, if there is space, its pong has been written.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let error = near.0.receive().await.unwrap_err();
    assert!(matches!(error, ControlError::Unread), "{error}");
    assert!(began.elapsed() >= CONTROL_SILENCE_MAX);
    drop((unread, far));
}

/// A slow transfer of a message is not interrupted. Only a peer that reads nothing is disconnected.
#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_slowly_is_not_lost() {
    let (near, far) = tokio::io::duplex(PORTION_BYTES);
    let mut writer = control_pair(near).1;
    let mut far = far;
    let bytes = vec![7; 8 * PORTION_BYTES];
    let sent = bytes.clone();
    let sending = tokio::spawn(async move { writer.send(&sent).await });
    let mut heard = Vec::new();
    let mut portion = vec![0; PORTION_BYTES];
    while heard.len() < bytes.len() {
        tokio::time::sleep(CONTROL_SILENCE_MAX - Duration::from_secs(1)).await;
        far.read_exact(&mut portion).await.unwrap();
        heard.extend_from_slice(&portion);
    }
    sending.await.unwrap().unwrap();
    assert_eq!(heard, bytes);
}

/// A host does not read a long order while the transfer is queued.
#[tokio::test(start_paused = true)]
async fn an_order_waits_for_as_long_as_its_peer_is_there() {
    let (near, mut far) = tokio::io::duplex(16);
    let mut writer = control_pair(near).1;
    let sending = tokio::spawn(async move { writer.send_order(&[7; 100]).await });
    tokio::time::sleep(100 * CONTROL_SILENCE_MAX).await;
    let mut heard = [0; 100];
    far.read_exact(&mut heard).await.unwrap();
    sending.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_greet_is_lost() {
    let (near, _far) = tokio::io::duplex(16);
    let mut reader = control_pair(near).0;
    let began = tokio::time::Instant::now();
    let error = reader.greeting().await.unwrap_err();
    assert_eq!(began.elapsed(), GREETING_TIMEOUT);
    assert!(matches!(error, ControlError::NoGreeting), "{error}");
    assert!(error.is_lost());
}
