//! Whether a receiver lets this side's key in: it is asked what a push of nothing into the key's first root would do.

use std::time::Duration;

use anyhow::Context;
use zmove_engine::fresh_transfer;
use zmove_transport::{Channel, ControlError, ControlReader, ControlWriter, control_pair};
use zmove_types::TransferId;
use zmove_wire::{
    Greeting, Open, Overwrite, Purpose, Refusal, RefusalCode, Role, ToReceiver, ToSender, Version, Waiting,
    decode_message, encode_message,
};

/// What a receiver has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// A push may come.
    Taken(Welcome),
    /// It speaks no version that this side speaks, as the greetings say.
    Incompatible(String),
    /// It says why not.
    Refused(Refusal),
    /// The conversation came to nothing.
    Broken(String),
}

/// What a receiver says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) versions: Versions,
    pub(crate) lanes_max: u16,
}

/// Versions of the protocol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    oldest: u16,
    newest: u16,
}

/// Those that this side speaks.
pub(crate) fn our_versions() -> Versions {
    Versions::of(&Greeting::new(Role::Control, TransferId([0; 16])))
}

impl Versions {
    const fn of(greeting: &Greeting) -> Self {
        Self { oldest: greeting.version_min, newest: greeting.version_max }
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.oldest == self.newest {
            write!(f, "version {}", self.newest)
        } else {
            write!(f, "versions {} to {}", self.oldest, self.newest)
        }
    }
}

impl Admission {
    /// Asks over a fresh connection, which it ends in order.
    pub(crate) async fn ask(channel: Channel) -> Self {
        let version = channel.version();
        let (reader, writer) = control_pair(channel);
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, converse(reader, writer, version)).await;
        let asked = asked.unwrap_or_else(|_| Err(anyhow::Error::msg("it does not answer")));
        asked.unwrap_or_else(|error| Self::Broken(format!("{error:#}")))
    }
}

async fn converse(
    mut reader: ControlReader,
    mut writer: ControlWriter,
    version: Version,
) -> anyhow::Result<Admission> {
    let transfer = fresh_transfer().context("draw a transfer id")?;
    let mut question = Greeting::new(Role::Control, transfer).encode().to_vec();
    question.extend(encode_message(&preview_of_nothing(transfer).into_message(version)));
    // a receiver that refuses need not have listened
    let _refused_early = writer.send(&question).await;
    let greeting = reader.greeting().await.context("greet")?;
    if let Err(error) = greeting.agree_within(version) {
        return Ok(Admission::Incompatible(error.to_string()));
    }
    let opened = match next(&mut reader).await? {
        ToSender::Opened(opened) => opened,
        ToSender::Refused(refusal) => return Ok(Admission::Refused(refusal)),
        ToSender::Waiting(Waiting { text, .. }) => {
            return Ok(Admission::Refused(Refusal { code: RefusalCode::Full, text }));
        }
        _ => anyhow::bail!("its first answer makes no sense"),
    };
    let welcome = Welcome { versions: Versions::of(&greeting), lanes_max: opened.lanes_max };
    writer.send(&encode_message(&ToReceiver::Announce { items: 0, mismatches: 0 })).await?;
    match next(&mut reader).await? {
        ToSender::Finished(_) => {}
        ToSender::Refused(refusal) => return Ok(Admission::Refused(refusal)),
        _ => anyhow::bail!("its last answer makes no sense"),
    }
    writer.finish().await?;
    Ok(Admission::Taken(welcome))
}

async fn next(reader: &mut ControlReader) -> anyhow::Result<ToSender> {
    let bytes = reader.receive().await?.ok_or(ControlError::Closed)?;
    Ok(decode_message(&bytes)?)
}

fn preview_of_nothing(TransferId(run): TransferId) -> Open {
    Open { purpose: Purpose::Preview, overwrite: Overwrite::Nothing, ..Open::new(Vec::new(), run) }
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
