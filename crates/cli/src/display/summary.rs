//! The summary of a push: what was moved, how fast, and what limited it.

use std::time::Duration;

use clap::ValueEnum;
use serde_json::json;
use zmove_sender::{Bottleneck, Limit, PathReport, Preview, Summary};
use zmove_transport::{Resumption, Transport};
use zmove_types::{ByteCount, ByteRate};
use zmove_wire::NotKept;

use crate::args::{DurabilityArg, ProofArg, PushArgs};
use crate::ceiling::Shares;
use crate::display::failures::SCHEMA;
use crate::display::format::{counted, files_per_second};
use crate::display::progress::print_json;
use crate::display::terminal;
use crate::value::exit::Exit;

/// What has carried a push to another host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carriage {
    pub(crate) transport: Transport,
    pub(crate) resumption: Resumption,
}

/// How a transfer has ended, beside its summary.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) exit: Exit,
    /// The id of the transfer.
    pub(crate) transfer: Option<String>,
    pub(crate) sessions: Sessions,
}

/// How many sessions a transfer has had at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sessions {
    One,
    /// Several with other hosts: nobody has added up what each of them has counted.
    Several,
}

/// Prints the summary in the form that was asked for. There is no `carriage` within one process, where nothing is
/// encrypted either.
pub(crate) fn print(
    summary: &Summary,
    args: &PushArgs,
    carriage: Option<Carriage>,
    shares: &Shares,
    ending: &Ending,
) {
    let transport = carriage.map(|carriage| carriage.transport);
    if summary.manifest_left_out > 0 {
        terminal::warn(format_args!(
            "{} names are not UTF-8, hold U+FFFD or end in CR, and are left out of the manifest: b3sum cannot read them",
            summary.manifest_left_out
        ));
    }
    if summary.manifest_unread > 0 {
        let files = counted(summary.manifest_unread, "file");
        terminal::warn(format_args!(
            "the manifest lacks {files}: they stay as they were there, whatever they hold"
        ));
    }
    if has_left_all_out(summary) {
        let patterns = "the last pattern that matches decides; only files that end in .h5: --exclude '*' --include '*/' \
                        --include '*.h5'";
        terminal::warn(format_args!(
            "the selection leaves out all that is in the sources ({patterns})"
        ));
    }
    if args.json {
        let mut said = as_json(summary, args, carriage);
        said["storage"] = json!(shares);
        said["schema"] = json!(SCHEMA);
        said["exit"] = json!(ending.exit as i32);
        said["transfer"] = json!(ending.transfer);
        if ending.sessions == Sessions::Several {
            OF_ONE_SESSION
                .into_iter()
                .for_each(|field| said[field] = json!(null));
            said["cipher"] = json!(cipher_key(args));
        }
        print_json(&said);
    } else if args.quiet {
        // An exit code that is not 0 has its reason on standard error.
        if ending.exit == Exit::Partial && summary.failed == 0 && !summary.not_kept.is_empty() {
            terminal::warn(format_args!(
                "{}(--strict-metadata)",
                not_kept(summary).replace('\n', " ")
            ));
        }
    } else {
        terminal::print_lines(&(as_text(summary, args, transport) + &shares.line()));
    }
}

/// The fields that a session counts, and nobody for several.
const OF_ONE_SESSION: [&str; 7] = [
    "lanes",
    "flush_seconds",
    "sender_cpu_seconds",
    "receiver_cpu_seconds",
    "limited_by",
    "limited_percent",
    "shares_percent",
];

/// Whether nothing was moved because nothing was to be: most likely that was not meant.
fn has_left_all_out(summary: &Summary) -> bool {
    summary.left_out > 0 && summary.files == 0 && summary.skipped == 0 && summary.failed == 0
}

fn as_text(summary: &Summary, args: &PushArgs, transport: Option<Transport>) -> String {
    let seconds = summary.elapsed.as_secs_f64();
    let cipher = transport.map_or_else(String::new, |_| format!(", cipher: {}", cipher_key(args)));
    let over = transport.map_or_else(String::new, |over| {
        format!(" over {}", over.to_string().to_uppercase())
    });
    if let (Some(preview), true) = (summary.preview, args.verify) {
        return verified(summary, preview, args) + &extras(summary, args);
    }
    if let Some(Preview { added, changed }) = summary.preview {
        let files = counted(summary.files, "file");
        let bytes = ByteCount(summary.bytes);
        let removed = if args.delete {
            format!(", {} to remove", summary.removed)
        } else {
            String::new()
        };
        let text = format!(
            "dry run: {added} to add, {changed} to change{removed}; {files} with {bytes} to send, {} there already\n",
            summary.skipped
        );
        return text + &extras(summary, args);
    }
    if has_left_all_out(summary) {
        return format!(
            "nothing was sent: the selection leaves out all\n{}",
            extras(summary, args)
        );
    }
    if summary.files == 0 && (summary.failed == 0 || summary.bytes == 0) {
        let compared = summary.skipped;
        let found = if args.update || args.ignore_existing {
            "stay"
        } else {
            "compared equal"
        };
        let none = if summary.failed == 0 {
            "no files to move"
        } else {
            "no file was moved"
        };
        let text = format!("{none}: {compared} {found} in {seconds:.2} s{cipher}\n");
        return text + &extras(summary, args);
    }
    let files = counted(summary.files, "file");
    let files_rate = files_per_second(ByteCount(summary.files).as_f64() / seconds.max(1e-9));
    let flushed = match args.durability {
        DurabilityArg::None => "not flushed".to_owned(),
        _ => format!("flushed in {:.2} s", summary.flush.as_secs_f64()),
    };
    let first_byte = match summary.first_byte {
        Some(time) => format!("first byte after {:.0} ms", time.as_secs_f64() * 1e3),
        None => "nothing had to be sent".to_owned(),
    };
    let verified = if summary.files > 0 {
        format!("verified ({}), ", proofs(args).join(", "))
    } else {
        String::new()
    };
    let mut text = format!(
        "{files}, {} in {seconds:.2} s: {}, {files_rate} files/s\n\
         {verified}{flushed}; {}{over}{cipher}, {first_byte}\n",
        ByteCount(summary.bytes),
        ByteRate::new(summary.bytes, summary.elapsed),
        counted(summary.lanes as u64, "lane"),
    );
    text.push_str(&extras(summary, args));
    if summary.bottleneck.percent > 0 && summary.files > 0 {
        text.push_str(&limit(summary));
    }
    text
}

/// What each file that was stored is proven by.
pub(crate) fn proofs(args: &PushArgs) -> &'static [&'static str] {
    match args.proof {
        ProofArg::Wire => &["wire"],
        ProofArg::Media => &["wire", "media"],
    }
}

/// How many entries differ, or are at one side alone.
pub(crate) fn differences(summary: &Summary) -> u64 {
    summary.preview.map_or(0, |Preview { added, changed }| {
        added + changed + summary.removed
    })
}

/// The result of a verification.
fn verified(summary: &Summary, Preview { added, changed }: Preview, args: &PushArgs) -> String {
    let compared = summary.skipped;
    let seconds = summary.elapsed.as_secs_f64();
    let how = if args.listed.is_some() {
        "by hash with the manifest, as the storage holds them"
    } else {
        "by hash, as both storages hold them"
    };
    if differences(summary) == 0 && summary.failed == 0 {
        let compared = counted(compared, "file");
        return format!("all the same: {compared} compared {how}, in {seconds:.2} s\n");
    }
    let removed = if args.delete {
        format!(", {} only at the target", summary.removed)
    } else {
        String::new()
    };
    if args.listed.is_some() {
        return format!(
            "{changed} differ, {added} not listed, {} listed and not there\n\
             {compared} files are the same, {how}; {seconds:.2} s\n",
            summary.removed
        );
    }
    let mut text = format!(
        "{changed} differ, {added} only at the source{removed}\n\
         {compared} files are the same, {how}; {seconds:.2} s\n"
    );
    if compared == 0 && changed == 0 && added > 0 {
        text += "nothing of the source is at the target: is that the right path? ('SRC' is compared with DST/SRC, 'SRC/' \
                 with DST)\n";
    }
    text
}

/// What limited a transfer, in a few words.
pub(crate) fn bottleneck(summary: &Summary) -> String {
    let Bottleneck { limit, percent, .. } = summary.bottleneck;
    format!("{limit}, {percent} % of the time")
}

/// The main limit of the run, and a remedy, if one is known.
fn limit(summary: &Summary) -> String {
    let limit = summary.bottleneck.limit;
    let idle = summary
        .path_idle()
        .filter(|idle| limit != Limit::Path && *idle >= IDLE_WORTH_SAYING);
    let idle = idle.map_or(String::new(), |idle| {
        format!("; the path was idle {:.0} %", idle * 100.0)
    });
    let advice = summary
        .finding()
        .map_or(String::new(), |finding| format!("{finding}\n"));
    format!("limited by: {}{idle}\n{advice}", bottleneck(summary))
}

/// The share of idle time that is worth a word: below it the path is nearly used up.
const IDLE_WORTH_SAYING: f64 = 0.1;

/// Further facts, if there are any: counts on one line, times that could not be kept on another.
pub(crate) fn extras(summary: &Summary, args: &PushArgs) -> String {
    let there = if args.update || args.ignore_existing {
        "stay at the target"
    } else {
        "equal at the target already"
    };
    let counts = [
        (
            if summary.files > 0 && summary.preview.is_none() {
                summary.skipped
            } else {
                0
            },
            there,
        ),
        (
            summary.linked,
            if summary.linked == 1 {
                "of the files is a hard link to another"
            } else {
                "of the files are hard links to others"
            },
        ),
        (
            if summary.preview.is_none() {
                summary.removed
            } else {
                0
            },
            "removed",
        ),
        (summary.spared, "not removed (--max-delete)"),
        (summary.kept_by_change, "not removed (the source changed)"),
        (
            summary.specials,
            if summary.specials == 1 {
                "special file not copied"
            } else {
                "special files not copied"
            },
        ),
        (summary.left_out, "left out by the selection"),
        (summary.resent, "resent after damage"),
        (summary.reconnects, "× reconnected"),
        (summary.failed, "FAILED"),
    ];
    let told = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"));
    let spared = [
        (summary.bytes_resumed, "of large files had come before"),
        (
            summary.bytes_matched,
            "of large files were the same at the target",
        ),
    ];
    let spared = spared.into_iter().filter(|(bytes, _)| *bytes > 0);
    let told: Vec<_> = told
        .chain(spared.map(|(bytes, what)| format!("{} {what}", ByteCount(bytes))))
        .collect();
    let told = if told.is_empty() {
        String::new()
    } else {
        format!("{}\n", told.join(", "))
    };
    match summary.times_beyond_range {
        0 => told + &not_kept(summary),
        files => format!(
            "{told}{} another time than the source's: the target's file system cannot hold theirs\n{}",
            if files == 1 {
                "1 file keeps".to_owned()
            } else {
                format!("{files} files keep")
            },
            not_kept(summary)
        ),
    }
}

/// What was to be kept of entries and is not, on one line.
fn not_kept(summary: &Summary) -> String {
    let counts = summary.not_kept.iter();
    let told: Vec<_> = counts
        .map(|lack| format!("{} of {} ({})", lack.kind(), lack.entries, lack.why))
        .collect();
    if told.is_empty() {
        String::new()
    } else {
        format!("not kept: {}\n", told.join(", "))
    }
}

fn not_kept_as_json(summary: &Summary) -> Vec<serde_json::Value> {
    let lack = |lack: &NotKept| json!({ "what": lack.kind().to_string(), "why": lack.why.to_string(), "entries": lack.entries });
    summary.not_kept.iter().map(lack).collect()
}

fn as_json(summary: &Summary, args: &PushArgs, carriage: Option<Carriage>) -> serde_json::Value {
    let transport = carriage.map(|carriage| carriage.transport);
    let resumed = carriage
        .map(|carriage| carriage.resumption)
        .filter(|resumption| resumption.bytes > 0);
    let stores = summary.preview.is_none() && summary.files > 0;
    json!({
        "event": "summary",
        "dry_run": summary.preview.is_some(),
        "verify": args.verify.then(|| differences(summary) == 0 && summary.failed == 0),
        "added": summary.preview.map(|preview| preview.added),
        "changed": summary.preview.map(|preview| preview.changed),
        "files": summary.files,
        "bytes": summary.bytes,
        "hard_links": summary.linked,
        "skipped": summary.skipped,
        "bytes_resumed": summary.bytes_resumed,
        "bytes_matched": summary.bytes_matched,
        "specials": summary.specials,
        "left_out": summary.left_out,
        "removed": summary.removed,
        "max_delete_kept": summary.spared,
        "source_changed_kept": summary.kept_by_change,
        "not_kept": not_kept_as_json(summary),
        "verified": if stores { proofs(args) } else { &[] },
        "failed": summary.failed,
        "vanished": summary.vanished,
        "times_beyond_range": summary.times_beyond_range,
        "resent": summary.resent,
        "repeated": summary.repeated,
        "reconnects": summary.reconnects,
        "lanes": summary.lanes,
        "cipher": transport.map(|_| cipher_key(args)),
        "transport": transport.map(|transport| transport.to_string()),
        "resumed_window_bytes": resumed.map(|resumption| resumption.bytes),
        "resumed_window_refuted": resumed.map(|resumption| resumption.is_refuted),
        "seconds": summary.elapsed.as_secs_f64(),
        "bytes_per_second": ByteRate::new(summary.bytes, summary.elapsed).0,
        "first_byte_seconds": summary.first_byte.map(|time| time.as_secs_f64()),
        "flush_seconds": summary.flush.as_secs_f64(),
        "sender_cpu_seconds": summary.sender_cpu.as_secs_f64(),
        "receiver_cpu_seconds": summary.receiver_cpu.as_secs_f64(),
        "limited_by": limit_key(summary.bottleneck.limit),
        "limited_percent": summary.bottleneck.percent,
        "shares_percent": shares(&summary.bottleneck),
        "path": summary.path.as_ref().map(|path| path_as_json(path, summary)),
        "advice": summary.finding().map(|finding| finding.to_string()),
    })
}

/// The shares of the wall clock, by limit.
fn shares(bottleneck: &Bottleneck) -> serde_json::Value {
    let keys = Limit::ALL.into_iter().map(limit_key);
    keys.map(str::to_owned)
        .zip(bottleneck.shares.map(serde_json::Value::from))
        .collect()
}

/// The kernel's figures of the lanes' connections; shares are from 0 to 1.
fn path_as_json(path: &PathReport, summary: &Summary) -> serde_json::Value {
    let started = if summary.reconnects > 0 {
        Duration::ZERO
    } else {
        summary.first_byte.unwrap_or_default()
    };
    let sending = summary.measured.saturating_sub(started);
    let goodput = |bytes: Option<&u64>| bytes.map(|bytes| ByteRate::new(*bytes, sending).0);
    let lanes = &path.bytes_acked;
    json!({
        "round_trip_min_seconds": path.round_trip_min.map(|time| time.as_secs_f64()),
        "bytes_sent": path.bytes_sent,
        "bytes_retransmitted": path.bytes_retransmitted,
        "segments_retransmitted": path.segments_retransmitted,
        "retransmitted_share": path.retransmitted_share(),
        "busy_lane_seconds": path.busy.as_secs_f64(),
        "idle_share": path.idle_share(summary.measured),
        "receive_window_limited_share": path.receive_window_share(),
        "send_buffer_limited_share": path.send_buffer_share(),
        "congestion_limited_share": path.congestion_share(),
        "lane_bytes_per_second_min": goodput(lanes.first()),
        "lane_bytes_per_second_median": goodput(lanes.get(lanes.len() / 2)),
        "lane_bytes_per_second_max": goodput(lanes.last()),
    })
}

/// The cipher, as it is typed.
fn cipher_key(args: &PushArgs) -> String {
    args.cipher
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

fn limit_key(limit: Limit) -> &'static str {
    match limit {
        Limit::StartUp => "start_up",
        Limit::Scan => "scan",
        Limit::SourceReads => "source_reads",
        Limit::SenderCpu => "sender_cpu",
        Limit::Path => "path",
        Limit::OwnRate => "own_rate",
        Limit::AllowedRate => "allowed_rate",
        Limit::ReceiverCpu => "receiver_cpu",
        Limit::TargetWrites => "target_writes",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Command};

    fn args() -> Box<PushArgs> {
        match Args::try_parse_from(["zmove", "push", "a", "b"])
            .unwrap()
            .command
        {
            Command::Push(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn where_all_failed_or_was_equal_there_is_no_rate_of_nothing() {
        let summary = Summary {
            failed: 1,
            skipped: 41,
            ..Summary::default()
        };
        let text = as_text(&summary, &args(), None);
        assert_eq!(
            text,
            "no file was moved: 41 compared equal in 0.00 s\n1 FAILED\n"
        );
        let partly = as_text(
            &Summary {
                bytes: 9,
                ..summary
            },
            &args(),
            None,
        );
        assert!(partly.starts_with("0 files, 9 B in "), "{partly}");
    }

    #[test]
    fn only_what_was_stored_is_called_verified() {
        let args = args();
        let is_called_so = |summary| as_text(&summary, &args, None).contains("verified (wire)");
        assert!(is_called_so(Summary {
            files: 1,
            ..Summary::default()
        }));
        assert!(!is_called_so(Summary {
            failed: 1,
            ..Summary::default()
        }));
    }
}
