//! Checks whether a receiver accepts this side's key, by asking it to preview an empty push into the key's first root.
//! `zmove doctor` runs this check.

use std::time::Duration;

use tokio::time::timeout;
use zmove_transport::{ControlReader, ControlWriter};
use zmove_types::TransferId;
use zmove_wire::{
    Greeting, Intent, Open, Overwrite, Role, ToReceiver, ToSender, encode_message, out_of_order,
};

use crate::control::{open_without_queue, receive};
use crate::error::SessionError;

/// Runs the check over a new connection and closes it gracefully. Returns the number of lanes that the receiver would
/// accept.
///
/// # Errors
/// [`SessionError::Refused`] with the receiver's reason, or another error if the conversation failed.
pub async fn ask_admission(
    reader: ControlReader,
    writer: ControlWriter,
    transfer: TransferId,
) -> Result<u16, SessionError> {
    let asked = timeout(ANSWER_TIMEOUT, ask(reader, writer, transfer)).await;
    asked.unwrap_or(Err(SessionError::Silent))
}

async fn ask(
    reader: ControlReader,
    mut writer: ControlWriter,
    transfer: TransferId,
) -> Result<u16, SessionError> {
    let greeting = Greeting::new(Role::Control, transfer);
    let open = Open {
        intent: Intent::Inspect,
        overwrite: Overwrite::Nothing,
        ..Open::new(Vec::new(), transfer.0)
    };
    let (mut inbox, opened) = open_without_queue(greeting, reader, &mut writer, open).await?;
    let nothing = ToReceiver::Announce {
        items: 0,
        mismatches: 0,
    };
    writer.send(&encode_message(&nothing)).await?;
    match receive(&mut inbox).await? {
        ToSender::Finished(_) => writer.finish().await?,
        ToSender::Refused(refusal) => return Err(SessionError::Refused(refusal)),
        _ => return out_of_order("the end of a check"),
    }
    Ok(opened.lanes_max)
}

/// Maximum duration of the whole conversation. The receiver flushes its storage before it accepts the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
