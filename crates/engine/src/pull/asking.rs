//! The beginning of a pull, or of a copy between other hosts: what is wanted, and the host's leave.

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

/// A control connection whose host has answered to what was said.
pub(crate) struct Asked {
    pub(crate) reader: ControlReader,
    pub(crate) writer: ControlWriter,
    /// Neither a refusal nor a wait.
    pub(crate) answer: ToSender,
    /// Whether the host was busy before: it has closed the lanes that came meanwhile.
    pub(crate) has_waited: bool,
}

/// How long a host may take to look at what is wanted.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Says what is wanted, and waits until the host does it; in its queue for `patience`.
pub(crate) async fn ask(
    mut reader: ControlReader,
    writer: ControlWriter,
    greeting: Greeting,
    wanted: ToSource,
    list: Option<Arc<[u8]>>,
    patience: Duration,
    observer: &dyn Observer,
) -> Result<Asked, PullError> {
    // Who is asked to send has no other target than its sources.
    let asks_for_sources = matches!(wanted, ToSource::Fetch(_) | ToSource::Copy(_));
    // Beside the answers: a host that has no room yet does not read a long list.
    let saying = tokio::spawn(say(writer, greeting, wanted, list));
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
    Ok(Asked {
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

async fn say(
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
