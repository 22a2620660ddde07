//! The start of a pull, or of a copy between other hosts: this side sends the request, and the host grants or refuses
//! it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{timeout, timeout_at};
use zmove_transport::{ControlError, ControlReader, ControlWriter};
use zmove_types::{Event, Observer};
use zmove_wire::limits::FETCH_LIST_PART_BYTES_MAX;
use zmove_wire::{
    Greeting, Refusal, RefusalCode, ToSender, ToSource, Waiting, decode_message, encode_message,
};

use crate::error::PullError;

/// A control connection whose host has answered the request.
pub(crate) struct RequestAnswer {
    pub(crate) reader: ControlReader,
    pub(crate) writer: ControlWriter,
    /// The answer of the host. A refusal or a wait is not stored here.
    pub(crate) answer: ToSender,
    /// Whether the host was busy at first. While it was busy, it closed the lanes that connected.
    pub(crate) has_waited: bool,
}

/// Time limit for the host to examine the request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Sends a request and waits for the host's answer. If the host is busy, waits in its queue for up to `patience`.
pub(crate) async fn ask(
    mut reader: ControlReader,
    writer: ControlWriter,
    greeting: Greeting,
    wanted: ToSource,
    list: Option<Arc<[u8]>>,
    patience: Duration,
    observer: &dyn Observer,
) -> Result<RequestAnswer, PullError> {
    // For a request to send, "target" in a refusal means the sources.
    let asks_for_sources = matches!(wanted, ToSource::Fetch(_) | ToSource::Copy(_));
    // Send concurrently with the reads below, because a busy host does not read a long list yet.
    let saying = tokio::spawn(send_request(writer, greeting, wanted, list));
    let first = async {
        reader.greeting().await?;
        next(&mut reader).await
    };
    let answered = timeout(ANSWER_TIMEOUT, first).await;
    let mut answer = answered.unwrap_or(Err(PullError::Silent))?;
    let due = Instant::now() + patience;
    let has_waited = matches!(answer, ToSender::Waiting(_));
    let answer = loop {
        answer = match answer {
            ToSender::Refused(refusal)
                if asks_for_sources && refusal.code == RefusalCode::Target =>
            {
                return Err(PullError::Sources(refusal));
            }
            ToSender::Refused(refusal) => return Err(PullError::Refused(refusal)),
            ToSender::Waiting(Waiting { text, .. }) if patience.is_zero() => {
                return Err(PullError::Refused(Refusal {
                    code: RefusalCode::Full,
                    text,
                }));
            }
            ToSender::Waiting(waiting) => {
                observer.on(&Event::Waiting {
                    message: waiting.to_string(),
                });
                let text = waiting.text;
                let next = timeout_at(due.into(), next(&mut reader)).await;
                next.unwrap_or(Err(PullError::StillInLine {
                    reason: text,
                    waited: patience,
                }))?
            }
            answer => break answer,
        }
    };
    let writer = saying.await.map_err(|_| PullError::Silent)??;
    Ok(RequestAnswer {
        reader,
        writer,
        answer,
        has_waited,
    })
}

async fn next(reader: &mut ControlReader) -> Result<ToSender, PullError> {
    let bytes = reader.receive().await?.ok_or(ControlError::Closed)?;
    Ok(decode_message(&bytes)?)
}

async fn send_request(
    mut writer: ControlWriter,
    greeting: Greeting,
    wanted: ToSource,
    list: Option<Arc<[u8]>>,
) -> Result<ControlWriter, ControlError> {
    let mut words = greeting.encode().to_vec();
    words.extend(encode_message(&wanted));
    writer.send_order(&words).await?;
    for part in list
        .iter()
        .flat_map(|list| list.chunks(FETCH_LIST_PART_BYTES_MAX))
    {
        writer
            .send_order(&encode_message(&ToSource::Listed {
                bytes: part.to_vec(),
            }))
            .await?;
    }
    Ok(writer)
}
