//! `zmove copy` performs a push, a pull or a copy between two other hosts. `zmove result` reports the result of a copy
//! between two other hosts.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use zmove_engine::{
    Connector, OnInterrupt, PushError, RemoteCopy, RetryPolicy, Summary, copy_result, end_copy,
    read_receipt,
};
use zmove_sender::SessionError;
use zmove_tools::sweep::Shares;
use zmove_transport::{Fingerprint, KnownHosts};
use zmove_types::{ByteCount, Counters, Escaped, Hex, NoObserver, from_hex, printable};
use zmove_wire::{CopyResult, EndedCopy, Receipt, SignedReceipt};

use crate::args::{CopyArgs, ResultArgs};
use crate::commands::transfer::{TransferEnd, display, exit_of, interrupted};
use crate::commands::{mount, pull, push};
use crate::display::format::{counted, same_files};
use crate::display::progress::print_json;
use crate::display::prompt::Prompt;
use crate::display::summary::json::not_kept_as_json;
use crate::display::summary::not_kept;
use crate::display::terminal;
use crate::settings::{self, Copy, CopySettings, Role};
use crate::value::exit::{Exit, failure};

/// Runs `zmove copy`. `after` determines whether a copy between two other hosts continues when the user or the job's
/// runner stops this process.
pub(crate) fn run(args: CopyArgs, started: Instant, after: OnInterrupt) -> Result<Exit> {
    match Copy::new(args, Arc::new(Prompt))? {
        Copy::Push(settings) => push::push(&settings, started),
        Copy::Pull(settings) => pull::pull(&settings, started),
        Copy::Between(settings) => between(&settings, started, after),
    }
}

fn between(settings: &CopySettings, started: Instant, after: OnInterrupt) -> Result<Exit> {
    let args = &settings.args;
    mount::require(args)?;
    let display = display(args, &settings.source.host, &settings.target.host)?;
    let home = settings::home(Role::Client)?;
    let copied = settings::block_on(2, async {
        let connector = |remote, settings| Connector {
            home: &home,
            remote,
            settings,
            listener: &display,
        };
        let copying = RemoteCopy {
            source: RetryPolicy {
                connector: connector(&settings.source, &settings.source_dial),
                timeout: args.timeout,
                busy_timeout: args.busy_timeout(),
            },
            target: connector(&settings.target, &settings.target_dial),
            order: settings.order.clone(),
            list: settings.list.clone(),
            bytes_max: settings.bytes_max,
            entries_max: settings.entries_max,
            after,
            observer: display.observer(),
        };
        Ok(copying.copy(started, interrupted()).await?)
    });
    let was_stopped =
        after == OnInterrupt::Stop && copied.as_ref().err().is_some_and(was_interrupted);
    let ended = TransferEnd::of(display, args, copied);
    if was_stopped {
        // This event informs the runner that the copy has stopped and need not be stopped again.
        print_json(&json!({ "event": "copy_ended" }));
    }
    let mut ended = ended?;
    let receipt = ended.result.receipt.take();
    let summary = &ended.result.summary;
    let told = exit_of(summary, args);
    let failed = summary.counters.failed;
    let exit = receipt
        .as_ref()
        .map_or(told, |receipt| exit_with(told, receipt, failed));
    ended.print(args, &Shares::default(), exit);
    if let Some(receipt) = receipt.filter(|_| !args.quiet && !args.json) {
        terminal::say(format_args!(
            "signed by {}: {}",
            settings.target,
            received(&receipt)
        ));
    }
    Ok(exit)
}

/// Returns whether the user stopped this process and the copy does not continue on the other hosts.
fn was_interrupted(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(PushError::Session(SessionError::Interrupted))
    )
}

/// Stops a copy between two other hosts that an earlier process started with these arguments.
pub(crate) fn end(args: CopyArgs, id: &str) -> Result<Exit> {
    let id = from_hex(id.as_bytes()).context("write the id of a copy")?;
    let Copy::Between(copy) = Copy::new(args, Arc::new(Prompt))? else {
        return Ok(Exit::Done);
    };
    let home = settings::home(Role::Client)?;
    settings::block_on(2, async {
        let source = Connector {
            home: &home,
            remote: &copy.source,
            settings: &copy.source_dial,
            listener: &terminal::NoticeLines,
        };
        Ok(end_copy(&source, id).await?)
    })?;
    Ok(Exit::Done)
}

/// Returns the exit code of a copy. `told` is the exit code that the sending host reported, and `failed` is the number
/// of failures that it reported. The target host signed `receipt`.
fn exit_with(told: Exit, receipt: &Receipt, failed: u64) -> Exit {
    if told == Exit::Partial || receipt.faults <= failed {
        return told;
    }
    terminal::warn(format_args!(
        "the receipt of the target host lists {} faults that the source host did not report",
        receipt.faults
    ));
    Exit::Partial
}

fn received(
    Receipt {
        files,
        bytes,
        faults,
        target,
        ..
    }: &Receipt,
) -> String {
    let target = Escaped(target);
    let files = counted(*files, "file");
    let faults = counted(*faults, "fault");
    format!(
        "{files}, {} received into '{target}', {faults}",
        ByteCount(*bytes)
    )
}

/// Runs `zmove result`.
pub(crate) fn result(args: &ResultArgs) -> Result<Exit> {
    let home = settings::home(Role::Client)?;
    let dial = settings::ask_dial();
    let after = if args.stop {
        OnInterrupt::Stop
    } else {
        OnInterrupt::Continue
    };
    let (key, result) = settings::block_on(2, async {
        let connector = Connector {
            home: &home,
            remote: &args.host,
            settings: &dial,
            listener: &terminal::NoticeLines,
        };
        Ok(copy_result(&connector, args.id, after, &NoObserver).await?)
    })?;
    let (exit, told, said) = match result {
        CopyResult::Runs => {
            let text = if args.stop {
                "the copy was running and was asked to end"
            } else {
                "the copy is running"
            };
            (Exit::Done, text.to_owned(), json!({ "state": "runs" }))
        }
        CopyResult::Received(signed) => {
            let receipt = checked(&signed, |signer| signer == key)?;
            let said = json!({ "state": "ended", "receipt": as_json(&receipt) });
            (exit_of_receipt(&receipt), received(&receipt), said)
        }
        CopyResult::Ended(ended) => of_sender(args, &KnownHosts::open(&home)?, *ended)?,
    };
    if args.json {
        let mut said = said;
        said["event"] = "result".into();
        said["id"] = Hex(&args.id).to_string().into();
        said["exit"] = json!(exit as i32);
        print_json(&said);
    } else {
        told.lines().for_each(terminal::say);
    }
    Ok(exit)
}

fn exit_of_receipt(receipt: &Receipt) -> Exit {
    if receipt.faults > 0 {
        Exit::Partial
    } else {
        Exit::Done
    }
}

/// Returns the result that the sending host reports. The receipt in this result must be signed by the key that is
/// pinned for the target host.
fn of_sender(
    args: &ResultArgs,
    known: &KnownHosts,
    EndedCopy { to, ended, strict }: EndedCopy,
) -> Result<(Exit, String, Value)> {
    let summary = match ended {
        Ok(account) => Summary::from(account),
        Err(refusal) => {
            let text = printable(&refusal.text);
            let said = json!({ "state": "failed", "message": text });
            return Ok((Exit::Broken, format!("the copy failed: {text}"), said));
        }
    };
    let pinned = known.lookup(&to.host, to.port);
    let receipt = match &summary.receipt {
        Some(signed) => {
            let receipt = checked(signed, |signer| pinned == Some(signer))?;
            (receipt.id == args.id).then_some(receipt)
        }
        None => None,
    };
    let is_preview = summary.is_preview;
    let counters = &summary.counters;
    let host = Escaped(to.host.as_bytes());
    let mut text = sent(counters, is_preview, format_args!("{host}:{}", to.port));
    match &receipt {
        Some(receipt) => text += &format!("\nsigned by {host}:{}: {}", to.port, received(receipt)),
        None if is_preview => {}
        None => text += "; no receipt from that host",
    }
    if !summary.not_kept.is_empty() {
        text = text + "\n" + not_kept(&summary.not_kept).trim_end();
    }
    let told = match Exit::of_counters(counters, is_preview) {
        _ if strict && !summary.not_kept.is_empty() => Exit::Partial,
        Exit::Partial => Exit::Partial,
        // Without a signed receipt, the files may not have arrived.
        _ if receipt.is_none() && !is_preview => Exit::Broken,
        told => told,
    };
    let exit = receipt
        .as_ref()
        .map_or(told, |receipt| exit_with(told, receipt, counters.failed));
    let said = json!({
        "state": "ended",
        "files": counters.files,
        "bytes": counters.bytes,
        "failed": counters.failed,
        "added": is_preview.then_some(counters.added),
        "changed": is_preview.then_some(counters.changed),
        "not_kept": not_kept_as_json(&summary.not_kept),
        "receipt": receipt.as_ref().map(as_json),
    });
    Ok((exit, text, said))
}

/// Returns a text about the data that a daemon received, or about the differences that a preview found.
fn sent(counters: &Counters, is_preview: bool, daemon: fmt::Arguments<'_>) -> String {
    let Counters {
        files,
        bytes,
        failed,
        added,
        changed,
        removed,
        skipped,
        ..
    } = *counters;
    if is_preview {
        format!(
            "nothing was sent to {daemon}: {added} only at the source, {changed} differ, {removed} only at the target, \
             {}, {failed} failed",
            same_files(skipped)
        )
    } else {
        format!(
            "{}, {} sent to {daemon}, {failed} failed",
            counted(files, "file"),
            ByteCount(bytes)
        )
    }
}

fn checked(signed: &SignedReceipt, is_right: impl FnOnce(Fingerprint) -> bool) -> Result<Receipt> {
    let read = read_receipt(signed).filter(|(signer, _)| is_right(*signer));
    let (_, receipt) = read.ok_or_else(|| {
        failure(
            Exit::Authentication,
            "the receipt is not signed by the key that is pinned for the target's host",
        )
    })?;
    Ok(receipt)
}

fn as_json(receipt: &Receipt) -> Value {
    json!({
        "files": receipt.files,
        "bytes": receipt.bytes,
        "faults": receipt.faults,
        "target": String::from_utf8_lossy(&receipt.target),
        "sender": Fingerprint(receipt.source).to_string(),
        "ended": receipt.ended,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source may report success although the target host has signed that there were faults.
    #[test]
    fn faults_that_only_the_target_s_host_tells_are_failures() {
        let receipt = Receipt {
            id: [1; 16],
            client: [2; 32],
            source: [3; 32],
            target: Vec::new(),
            files: 1,
            bytes: 1,
            faults: 2,
            ended: 1,
        };
        assert_eq!(exit_with(Exit::Done, &receipt, 1), Exit::Partial);
        assert_eq!(exit_with(Exit::Done, &receipt, 2), Exit::Done);
        assert_eq!(exit_with(Exit::MaxDelete, &receipt, 0), Exit::Partial);
        assert_eq!(exit_with(Exit::Partial, &receipt, 0), Exit::Partial);
    }
}
