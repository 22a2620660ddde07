//! `half` checks that a large file that is half complete is completed in half of the time, and that no data of the
//! first half is read again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::counted::Counted;
use super::new_place;
use super::one::mebibytes;
use super::yard::{Done, Yard};
use crate::data::datasets;
use crate::data::trees::{self, Modes};
use crate::measurements::measure::figures;
use crate::measurements::peers::zmove_binary;
use crate::torture::dice::Dice;
use crate::units::ByteCount;

/// The settings of the test.
#[derive(Args, Debug)]
pub(crate) struct HalfArgs {
    /// Size of the file. Its source is a single hole and is sent as zeros.
    #[arg(long, default_value = "8GiB")]
    size: ByteCount,
    /// Directory for source and target.
    #[arg(long, default_value = datasets::DEFAULT_DIRECTORY)]
    dir: PathBuf,
    /// The zmove binary. Default: as for `compare`.
    #[arg(long)]
    zmove: Option<PathBuf>,
    /// Additional arguments of every `zmove push`, in one string.
    #[arg(long, default_value = "--sparse never", allow_hyphen_values = true)]
    zmove_args: String,
}

/// A push, and the resources that the daemon used for it.
struct Measured {
    done: Done,
    receiver: Counted,
}

/// Pushes the file completely, then until half of it is stored, and then the rest.
pub(crate) fn half(arguments: &HalfArgs) -> Result<ExitCode> {
    let zmove = zmove_binary(arguments.zmove.as_deref())?;
    let place = new_place(&arguments.dir)?;
    let source = place.join("source");
    fs::create_dir(&source).with_context(|| format!("failed to create {}", source.display()))?;
    let file = File::create(source.join("hole")).context("failed to create the source file")?;
    file.set_len(arguments.size.0)
        .context("failed to set the source file's size")?;
    let options: Vec<String> = arguments
        .zmove_args
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let mut yard = Yard::set_up(
        &zmove,
        &place,
        &source,
        &options,
        &mut Dice::new(u64::from(std::process::id())),
    )?;
    let right = compare(&mut yard, &source, arguments.size.0)?;
    drop(yard);
    fs::remove_dir_all(&place).with_context(|| format!("failed to remove {}", place.display()))?;
    Ok(if right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn compare(yard: &mut Yard, source: &Path, total_bytes: u64) -> Result<bool> {
    let whole = measure(yard)?;
    yard.empty_target()?;
    let mut push = yard.push()?;
    push.wait_until_stored(total_bytes / 2)?;
    push.kill()?;
    let stored_bytes = yard.journalled_bytes()?;
    let rest = measure(yard)?;
    let difference = trees::difference(source, yard.target(), Modes::Compared)?;
    println!(
        "killed the sender when {:.1} MiB of {:.1} were stored",
        mebibytes(stored_bytes),
        mebibytes(total_bytes)
    );
    println!(
        "{}",
        figures::table(&HEADINGS, &[row("whole", &whole), row("rest", &rest)])
    );
    println!(
        "rest ÷ whole: time {:.3}, CPU {:.3}; of the bytes {:.3} were missing; {}",
        rest.done.elapsed.as_secs_f64() / whole.done.elapsed.as_secs_f64(),
        rest.cpu_seconds() / whole.cpu_seconds(),
        mebibytes(total_bytes - stored_bytes) / mebibytes(total_bytes),
        difference.as_deref().unwrap_or("the copy is right"),
    );
    Ok(difference.is_none())
}

fn measure(yard: &mut Yard) -> Result<Measured> {
    let before = yard.receiver()?;
    let done = yard.push()?.finish()?;
    Ok(Measured {
        done,
        receiver: yard.receiver()? - before,
    })
}

impl Measured {
    fn cpu_seconds(&self) -> f64 {
        (self.done.sender.cpu + self.receiver.cpu).as_secs_f64()
    }
}

fn row(name: &str, run: &Measured) -> Vec<String> {
    let done = &run.done;
    let mut row = vec![
        name.to_owned(),
        format!("{:.2}", done.elapsed.as_secs_f64()),
    ];
    let bytes = [
        done.bytes,
        done.bytes_resumed,
        done.sender.bytes_read,
        run.receiver.bytes_read,
        run.receiver.bytes_written,
    ];
    row.extend(bytes.map(|bytes| format!("{:.1}", mebibytes(bytes))));
    row.extend(
        [done.sender.cpu, run.receiver.cpu].map(|time| format!("{:.2}", time.as_secs_f64())),
    );
    row
}

const HEADINGS: [&str; 9] = [
    "push",
    "s",
    "moved MiB",
    "resumed MiB",
    "sender read",
    "receiver read",
    "receiver written",
    "sender CPU-s",
    "receiver CPU-s",
];
