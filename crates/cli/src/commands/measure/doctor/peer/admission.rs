//! A check whether a receiver lets this side's key in: it is asked what a push of nothing into the key's first root
//! would do.

use std::time::Duration;

use anyhow::Context;
use zmove_engine::fresh_transfer;
use zmove_transport::{Channel, ControlError, ControlReader, ControlWriter, control_pair};
use zmove_types::TransferId;
use zmove_wire::{
    Greeting, GreetingError, Intent, Open, Overwrite, Refusal, RefusalCode, Role, ToReceiver,
    ToSender, Waiting, decode_message, encode_message,
};

/// The answer of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The receiver would take a push, over so many lanes.
    Taken { lanes_max: u16 },
    /// What answers is no zmove, or one of another version, by its greeting.
    Incompatible(GreetingError),
    /// The receiver refuses, and gives its reason.
    Refused(Refusal),
    /// The conversation broke off.
    Broken(String),
}

impl Admission {
    /// Asks over a fresh connection, and closes it in order.
    pub(crate) async fn ask(channel: Channel) -> Self {
        let (reader, writer) = control_pair(channel);
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, converse(reader, writer)).await;
        let asked = asked.unwrap_or_else(|_| Err(anyhow::Error::msg("it does not answer")));
        asked.unwrap_or_else(|error| Self::Broken(format!("{error:#}")))
    }
}

async fn converse(
    mut reader: ControlReader,
    mut writer: ControlWriter,
) -> anyhow::Result<Admission> {
    let transfer = fresh_transfer().context("draw a transfer id")?;
    let mut question = Greeting::new(Role::Control, transfer).encode().to_vec();
    question.extend(encode_message(&ToReceiver::Open(preview_of_nothing(
        transfer,
    ))));
    // A receiver that refuses need not have read the question.
    let _refused_early = writer.send(&question).await;
    match reader.greeting().await {
        Err(ControlError::Greeting(error)) => return Ok(Admission::Incompatible(error)),
        greeting => drop(greeting.context("greet")?),
    }
    let opened = match next(&mut reader).await? {
        ToSender::Opened(opened) => opened,
        ToSender::Refused(refusal) => return Ok(Admission::Refused(refusal)),
        ToSender::Waiting(Waiting { text, .. }) => {
            return Ok(Admission::Refused(Refusal {
                code: RefusalCode::Full,
                text,
            }));
        }
        _ => anyhow::bail!("its first answer makes no sense"),
    };
    writer
        .send(&encode_message(&ToReceiver::Announce {
            items: 0,
            mismatches: 0,
        }))
        .await?;
    match next(&mut reader).await? {
        ToSender::Finished(_) => {}
        ToSender::Refused(refusal) => return Ok(Admission::Refused(refusal)),
        _ => anyhow::bail!("its last answer makes no sense"),
    }
    writer.finish().await?;
    Ok(Admission::Taken {
        lanes_max: opened.lanes_max,
    })
}

async fn next(reader: &mut ControlReader) -> anyhow::Result<ToSender> {
    let bytes = reader.receive().await?.ok_or(ControlError::Closed)?;
    Ok(decode_message(&bytes)?)
}

fn preview_of_nothing(TransferId(run): TransferId) -> Open {
    Open {
        intent: Intent::Inspect,
        overwrite: Overwrite::Nothing,
        ..Open::new(Vec::new(), run)
    }
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
