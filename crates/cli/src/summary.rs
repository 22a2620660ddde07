//! The last word of a push: what was moved, how fast, and what limited it.

use anyhow::Result;
use serde_json::json;
use zmove_sender::{Limit, Summary};
use zmove_types::{ByteCount, ByteRate};

use crate::args::{CipherArg, DurabilityArg, PushArgs};
use crate::progress::print_json;
use crate::terminal;

/// Prints the summary in the form that was asked for; `cipher` is that of the lanes, if they had one to have.
pub(crate) fn print(summary: &Summary, args: &PushArgs, cipher: Option<CipherArg>) -> Result<()> {
    let cipher = cipher.map(cipher_key);
    if summary.manifest_left_out > 0 {
        terminal::warn(format_args!(
            "{} names are not UTF-8 and are left out of the manifest: b3sum cannot read them",
            summary.manifest_left_out
        ));
    }
    if args.manifest.is_some() && summary.skipped > 0 && !args.checksum {
        terminal::warn(format_args!(
            "{} files were there already and are left out of the manifest: they were not read (-c reads them)",
            summary.skipped
        ));
    }
    if args.json {
        print_json(&as_json(summary, cipher));
    } else if !args.quiet {
        terminal::print(as_text(summary, args.durability, cipher));
    }
    Ok(())
}

fn as_text(summary: &Summary, durability: DurabilityArg, cipher: Option<&str>) -> String {
    let seconds = summary.elapsed.as_secs_f64();
    let cipher = cipher.map_or_else(String::new, |cipher| format!(", cipher: {cipher}"));
    if summary.files == 0 && summary.failed == 0 {
        let compared = summary.skipped;
        let text = format!("nothing to move: {compared} files compared equal in {seconds:.2} s{cipher}\n");
        return text + &extras(summary);
    }
    let files_per_second = ByteCount(summary.files).as_f64() / seconds.max(1e-9);
    let flushed = match durability {
        DurabilityArg::None => "not flushed".to_owned(),
        _ => format!("flushed in {:.2} s", summary.flush.as_secs_f64()),
    };
    let first_byte = match summary.first_byte {
        Some(time) => format!("first byte after {:.0} ms", time.as_secs_f64() * 1e3),
        None => "nothing had to be sent".to_owned(),
    };
    let mut text = format!(
        "{} files, {} in {seconds:.2} s: {}, {files_per_second:.0} files/s\n\
         verified (wire), {flushed}; {} lanes{cipher}, {first_byte}\n",
        summary.files,
        ByteCount(summary.bytes),
        ByteRate::new(summary.bytes, summary.elapsed),
        summary.lanes,
    );
    text.push_str(&extras(summary));
    if summary.verdict.percent > 0 && summary.files > 0 {
        text.push_str(&format!(
            "limited by: {}, {} % of the time\n",
            summary.verdict.limit, summary.verdict.percent
        ));
    }
    text
}

/// What else there is to say, on one line, if anything.
fn extras(summary: &Summary) -> String {
    let counts = [
        (if summary.files > 0 { summary.skipped } else { 0 }, "equal at the target already"),
        (summary.specials, "special files not copied"),
        (summary.resent, "resent after damage"),
        (summary.failed, "FAILED"),
    ];
    let told = counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let told: Vec<_> = told.collect();
    if told.is_empty() { String::new() } else { format!("{}\n", told.join(", ")) }
}

fn as_json(summary: &Summary, cipher: Option<&str>) -> serde_json::Value {
    json!({
        "event": "summary",
        "files": summary.files,
        "bytes": summary.bytes,
        "skipped": summary.skipped,
        "specials": summary.specials,
        "failed": summary.failed,
        "vanished": summary.vanished,
        "resent": summary.resent,
        "lanes": summary.lanes,
        "cipher": cipher,
        "seconds": summary.elapsed.as_secs_f64(),
        "bytes_per_second": ByteRate::new(summary.bytes, summary.elapsed).0,
        "first_byte_seconds": summary.first_byte.map(|time| time.as_secs_f64()),
        "flush_seconds": summary.flush.as_secs_f64(),
        "sender_cpu_seconds": summary.sender_cpu.as_secs_f64(),
        "receiver_cpu_seconds": summary.receiver_cpu.as_secs_f64(),
        "limited_by": limit_key(summary.verdict.limit),
        "limited_percent": summary.verdict.percent,
    })
}

fn cipher_key(cipher: CipherArg) -> &'static str {
    match cipher {
        CipherArg::Tls => "tls",
        CipherArg::None => "none",
    }
}

fn limit_key(limit: Limit) -> &'static str {
    match limit {
        Limit::StartUp => "start_up",
        Limit::Scan => "scan",
        Limit::SourceReads => "source_reads",
        Limit::SenderCpu => "sender_cpu",
        Limit::Path => "path",
        Limit::ReceiverCpu => "receiver_cpu",
        Limit::TargetWrites => "target_writes",
    }
}
