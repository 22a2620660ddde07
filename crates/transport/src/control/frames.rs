//! Reading the frames of a control connection in a task of its own, beside one that sends pings and answers them.
//!
//! The task reads from the greeting on, whatever the session does, so a ping is answered in any phase. It reads ahead
//! one short message; a longer one waits until the session asks for it, and the pings behind that wait too.
//! **Invariant:** reading never waits for writing, so two peers who both have much to send never wait for each other.

use std::sync::Weak;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use zmove_wire::limits::{MESSAGE_BYTES_MAX, within};
use zmove_wire::{ControlHeader, encode_pong};

use super::{Answers, ControlError, Patience, Sending, Unheard};

/// A message that is no longer is read before anyone asks for it: room for nearly all openings.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// The messages of a connection that is being read.
pub(super) struct Listening {
    messages: mpsc::Receiver<Result<Vec<u8>, ControlError>>,
    /// The length of the longest message that the session asks for; 0 once a message has been read.
    wanted: watch::Sender<usize>,
}

impl Listening {
    /// Reads a connection in a task, which ends when this is dropped, or with an error when the peer does not read its
    /// pongs. Pings are answered once something has been sent.
    pub(super) fn begin(unheard: Unheard) -> Self {
        let (messages_in, messages) = mpsc::channel(1);
        let wanted = watch::Sender::new(0);
        let (pings, to_answer) = watch::channel(None);
        let (unread_in, unread) = oneshot::channel();
        tokio::spawn(exchange(
            unheard.sending,
            unheard.begun,
            to_answer,
            unheard.asked,
            unread_in,
        ));
        let reading = FrameReader {
            stream: unheard.stream,
            wanted: wanted.clone(),
            pings,
            pongs: unheard.pongs,
            answers: unheard.answers,
        };
        tokio::spawn(async move {
            tokio::select! {
                () = reading.run(&messages_in) => {}
                // A message that is cut off is of no use.
                () = messages_in.closed() => {}
                // What the peer sent before it was lost is read to its end, so only this error ends the reading.
                Ok(error) = unread => drop(messages_in.send(Err(error)).await),
            }
        });
        Self { messages, wanted }
    }

    /// The next message that is no longer than `longest`; `None` when the peer ended the connection between messages.
    pub(super) async fn receive(
        &mut self,
        longest: usize,
    ) -> Result<Option<Vec<u8>>, ControlError> {
        let received = match self.messages.try_recv() {
            Ok(received) => Some(received),
            Err(_) => {
                self.wanted.send_replace(longest);
                self.messages.recv().await
            }
        };
        let message = received.transpose()?;
        if let Some(message) = &message {
            within("message", message.len(), longest)?;
        }
        Ok(message)
    }
}

/// One frame.
#[derive(Debug)]
pub(crate) enum ControlFrame {
    /// A message of so many bytes, which are still to be read.
    Message(usize),
    Ping(u64),
    Pong(u64),
}

/// The next frame, of a message only its header; `None` when the stream ends between frames.
pub(crate) async fn next_frame(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<ControlFrame>, ControlError> {
    let mut header = [0; ControlHeader::BYTES];
    if stream.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[1..]).await?;
    Ok(Some(match ControlHeader::decode(header)? {
        ControlHeader::Message { bytes } => ControlFrame::Message(bytes),
        ControlHeader::Ping => ControlFrame::Ping(stream.read_u64_le().await?),
        ControlHeader::Pong => ControlFrame::Pong(stream.read_u64_le().await?),
    }))
}

/// The body of a message.
pub(crate) async fn body(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: usize,
) -> Result<Vec<u8>, ControlError> {
    let mut message = vec![0; bytes];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

struct FrameReader<R> {
    stream: R,
    wanted: watch::Sender<usize>,
    pings: watch::Sender<Option<u64>>,
    pongs: watch::Sender<Option<u64>>,
    answers: Answers,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads until the stream ends, breaks, or the messages are no longer wanted.
    async fn run(mut self, messages: &mpsc::Sender<Result<Vec<u8>, ControlError>>) {
        loop {
            let message = match self.next_message().await {
                Ok(Some(message)) => Ok(message),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            let failed = message.is_err();
            if messages.send(message).await.is_err() || failed {
                return;
            }
        }
    }

    async fn next_message(&mut self) -> Result<Option<Vec<u8>>, ControlError> {
        loop {
            match next_frame(&mut self.stream).await? {
                None => return Ok(None),
                Some(ControlFrame::Ping(value)) if (self.answers)() => {
                    self.pings.send_replace(Some(value));
                }
                Some(ControlFrame::Ping(_)) => {}
                Some(ControlFrame::Pong(value)) => drop(self.pongs.send_replace(Some(value))),
                Some(ControlFrame::Message(bytes)) => {
                    self.wait_until_wanted(bytes).await?;
                    let message = body(&mut self.stream, bytes).await?;
                    self.wanted.send_replace(0);
                    return Ok(Some(message));
                }
            }
        }
    }

    /// Waits until the session asks for a message that is too long to be read ahead.
    async fn wait_until_wanted(&mut self, bytes: usize) -> Result<(), ControlError> {
        if bytes <= AHEAD_BYTES_MAX {
            return Ok(());
        }
        let mut wanted = self.wanted.subscribe();
        let wanted = wanted.wait_for(|longest| *longest > 0).await;
        let longest = wanted.map_or(MESSAGE_BYTES_MAX, |longest| *longest);
        Ok(within("message", bytes, longest)?)
    }
}

/// Answers pings, and sends those that are asked for, until the writer is gone. Of several that wait, the newest is
/// taken. `unread` takes the error of a peer that does not read them.
async fn exchange(
    sending: Weak<Mutex<Sending>>,
    mut begun: watch::Receiver<bool>,
    mut pings: watch::Receiver<Option<u64>>,
    mut asked: watch::Receiver<Option<u64>>,
    unread: oneshot::Sender<ControlError>,
) {
    let mut writer = begun.clone();
    let exchanging = async {
        // Nothing goes before this side's greeting.
        if begun.wait_for(|begun| *begun).await.is_err() {
            return;
        }
        loop {
            let pong = tokio::select! {
                Ok(()) = pings.changed() => (*pings.borrow_and_update()).map(encode_pong),
                Ok(()) = asked.changed() => None,
                else => return,
            };
            let Some(sending) = sending.upgrade() else {
                return;
            };
            let mut sending = sending.lock().await;
            let frame = pong.map(Vec::from).or_else(|| sending.take_ping());
            match sending
                .write(&frame.unwrap_or_default(), Patience::Limited)
                .await
            {
                Ok(()) => {}
                Err(error @ ControlError::Unread) => {
                    // Nobody reads any more if this fails.
                    let _over = unread.send(error);
                    return;
                }
                Err(_) => return,
            }
        }
    };
    let writer_gone = async { while writer.changed().await.is_ok() {} };
    tokio::select! {
        () = exchanging => {}
        () = writer_gone => {}
    }
}
