//! `soak` runs hundreds of transfers by several identities through one daemon that is reloaded repeatedly. It then
//! checks the memory and the descriptors of the daemon.

pub(crate) mod level;
pub(crate) mod siege;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::process::Signal;

use self::level::{Level, Levels};
use crate::measurements::peers::zmove_binary;
use crate::torture::programs::{DAEMON_HOME, Place, Running};

/// The settings of the soak test.
#[derive(Args, Debug)]
pub(crate) struct SoakArgs {
    /// Number of transfers, which run one after the other.
    #[arg(long, default_value_t = 500)]
    transfers: u32,
    /// Number of identities, which take turns.
    #[arg(long, default_value_t = 8)]
    identities: u32,
    /// Number of transfers between two reloads.
    #[arg(long, default_value_t = 20)]
    reload_every: u32,
    /// Directory for keys, source and targets.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// The zmove binary. Default: as for `compare`.
    #[arg(long)]
    zmove: Option<PathBuf>,
}

/// Runs the test and prints the levels. Fails if a transfer fails, or if the average level of the last tenth is more
/// than 10 % above that of the first.
pub(crate) fn soak(arguments: &SoakArgs) -> Result<ExitCode> {
    let zmove = zmove_binary(arguments.zmove.as_deref())?;
    let directory = arguments
        .dir
        .join(format!("zmove-soak-{}", std::process::id()));
    fs::create_dir(&directory)
        .with_context(|| format!("failed to create {}", directory.display()))?;
    let soaked = run(arguments, &zmove, &directory);
    fs::remove_dir_all(&directory)
        .with_context(|| format!("failed to remove {}", directory.display()))?;
    let (levels, errors) = soaked?;
    let (first, last) = (levels.first_tenth(), levels.last_tenth());
    println!("first tenth: {first}\nlast tenth:  {last}\nerrors: {errors}");
    let right = errors == 0 && last.is_level_with(&first);
    Ok(if right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn run(arguments: &SoakArgs, zmove: &str, directory: &Path) -> Result<(Levels, u32)> {
    let source = directory.join("source");
    plant(&source)?;
    let place = Place {
        zmove: zmove.to_owned(),
        directory: directory.to_owned(),
    };
    for number in 0..arguments.identities {
        admit(&place, number)?;
    }
    let address = free_address()?;
    let mut daemon = place.serve(address, &["--metrics", "off"])?;
    let (mut levels, mut errors) = (Levels::default(), 0);
    let begun = Instant::now();
    for number in 0..arguments.transfers {
        if number % arguments.reload_every == 0 {
            daemon.running().signal(Signal::HUP);
        }
        let identity = number % arguments.identities;
        if !push(&place, &source, (identity, number), address)? {
            errors += 1;
        }
        let id = daemon.running().id();
        levels.add(Level::of(id)?);
    }
    println!(
        "{} transfers in {:.1} s",
        arguments.transfers,
        begun.elapsed().as_secs_f64()
    );
    daemon.running().signal(Signal::TERM);
    let Some(status) = daemon.running().wait(PATIENCE)? else {
        bail!("the daemon does not end")
    };
    if !status.success() {
        bail!("the daemon ended with {status}");
    }
    Ok((levels, errors))
}

/// Creates small files of many sizes, and one file of several groups.
fn plant(source: &Path) -> Result<()> {
    fs::create_dir(source)?;
    for number in 0..SMALL_FILES {
        let byte = u8::try_from(number % 251)?;
        fs::write(
            source.join(format!("small-{number}")),
            vec![byte; 1 + number * 97],
        )?;
    }
    fs::write(source.join("large"), vec![7; LARGE_BYTES])?;
    Ok(())
}

fn home(number: u32) -> String {
    format!("client-{number}")
}

/// Authorizes the key of an identity for its own root.
fn admit(place: &Place, number: u32) -> Result<()> {
    let (client, target) = (
        home(number),
        place.directory.join(format!("target-{number}")),
    );
    fs::create_dir(&target)?;
    let shown = place
        .command(&client)
        .args(["key", "show"])
        .output()
        .context("failed to start zmove")?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let key = text
        .split_whitespace()
        .rfind(|word| word.starts_with("SHA256:"));
    let key = key.context("zmove key show: no fingerprint")?;
    let mut allow = place.command(DAEMON_HOME);
    allow
        .args(["allow", key, "--name", &client, "--write", "--root"])
        .arg(&target);
    let status = allow.status().context("failed to start zmove allow")?;
    if !status.success() {
        bail!("zmove allow ended with {status}");
    }
    Ok(())
}

/// Pushes to a new directory and removes it afterwards. Returns whether the push succeeded and all files arrived.
fn push(
    place: &Place,
    source: &Path,
    (identity, number): (u32, u32),
    to: SocketAddr,
) -> Result<bool> {
    let mut command = place.command(&home(identity));
    command.args(["push", "--accept-new", "--quiet", "--durability", "none"]);
    command.arg(source.join("")).arg(format!("{to}:{number}"));
    let mut push = Running::start(&mut command)?;
    let Some(status) = push.wait(PATIENCE)? else {
        return Ok(false);
    };
    let target = place
        .directory
        .join(format!("target-{identity}"))
        .join(number.to_string());
    let came = fs::read_dir(&target).map(Iterator::count).unwrap_or(0);
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    Ok(status.success() && came == SMALL_FILES + 1)
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

const SMALL_FILES: usize = 200;
const LARGE_BYTES: usize = 24 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
