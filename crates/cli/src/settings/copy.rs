//! The settings of a copy. Depending on the hosts of its source and its target, a copy is a push, a pull or a copy
//! between two other hosts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use anyhow::Result;
use zmove_engine::{Confirm, DialSettings, Location, Remote, Start, fresh_transfer};
use zmove_types::Escaped;
use zmove_wire::{CopyOrder, HostAddress};

use super::dial;
use super::pull::{PullSettings, fetch, list, one_host, refuse_several};
use super::push::{PushSettings, dial_settings, refuse_contradictions};
use crate::args::{CipherArg, CopyArgs, PushArgs, ViaArg};
use crate::value::exit::{refuse, usage_error};

/// The kind of a copy, which depends on the hosts of its source and its target.
pub(crate) enum Copy {
    Push(Box<PushSettings>),
    Pull(Box<PullSettings>),
    Between(Box<CopySettings>),
}

/// The settings of a copy between two other hosts.
#[derive(Debug)]
pub(crate) struct CopySettings {
    /// The host of the sources.
    pub(crate) source: Remote,
    pub(crate) source_dial: DialSettings,
    /// The host of the target.
    pub(crate) target: Remote,
    pub(crate) target_dial: DialSettings,
    pub(crate) order: CopyOrder,
    pub(crate) list: Option<Arc<[u8]>>,
    pub(crate) bytes_max: Option<u64>,
    pub(crate) entries_max: Option<u64>,
    /// The options as typed.
    pub(crate) args: PushArgs,
}

impl Copy {
    /// Determines the kind and the settings of a copy. `ask` confirms the key of an unknown host.
    ///
    /// # Errors
    /// Returns an error if the settings contradict each other, or do not apply to this source and target.
    pub(crate) fn new(args: CopyArgs, ask: Arc<dyn Confirm>) -> Result<Self> {
        let (target, sources) = args.push.paths.split_last().expect("two are demanded");
        let ends = (
            is_remote(&sources[0], &args.push),
            is_remote(target, &args.push),
        );
        if ends == (true, true) {
            return CopySettings::new(args, &ask).map(|settings| Self::Between(Box::new(settings)));
        }
        refuse(&[(
            args.max_bytes.is_some() || args.max_entries.is_some(),
            "--max-bytes and --max-entries are for copies between two other hosts",
        )])?;
        match ends {
            (true, _) => {
                PullSettings::new(args.push, ask).map(|settings| Self::Pull(Box::new(settings)))
            }
            (false, _) => {
                PushSettings::new(args.push, ask).map(|settings| Self::Push(Box::new(settings)))
            }
        }
    }
}

impl CopySettings {
    fn new(
        CopyArgs {
            push: args,
            max_bytes,
            max_entries,
            ..
        }: CopyArgs,
        ask: &Arc<dyn Confirm>,
    ) -> Result<Self> {
        let (target, sources) = args.paths.split_last().expect("two are demanded");
        refuse_several(target, start(target, &args))?;
        let Location::Remote(target) = Location::parse(target, start(target, &args))? else {
            return Err(usage_error(format!(
                "'{}' is on this host",
                Escaped::path(target)
            )));
        };
        let (source, paths) = one_host(sources, start(&sources[0], &args))?;
        let location = Location::Remote(target.clone());
        refuse_contradictions(&args, &location, sources)?;
        refuse_meaningless(&args)?;
        let source_dial = dial_settings(&args, &source, Arc::clone(ask))?;
        let target_dial = dial_settings(&args, &target, Arc::clone(ask))?;
        let list = list(&args)?;
        let order = CopyOrder {
            id: fresh_transfer()?.0,
            fetch: fetch(
                &args,
                &location,
                target.path.clone(),
                &paths,
                list.as_deref(),
            )?,
            to: HostAddress {
                host: target.host.clone(),
                port: target.port,
            },
            streams: args.streams,
            transport: dial::transport(args.dial.transport),
            clear: args.cipher == CipherArg::None,
            patience_secs: args.timeout.0.as_secs(),
        };
        Ok(Self {
            source,
            source_dial,
            target,
            target_dial,
            order,
            list: list.map(Into::into),
            bytes_max: max_bytes.map(|bytes| bytes.0),
            entries_max: max_entries,
            args,
        })
    }
}

/// Refuses options that do not work between two other hosts.
fn refuse_meaningless(args: &PushArgs) -> Result<()> {
    refuse(&[
        (
            args.manifest.is_some(),
            "--manifest cannot be used between two other hosts: the copy continues without this command",
        ),
        (
            args.proofs.is_some(),
            "--proofs cannot be used between two other hosts: the copy continues without this command",
        ),
        (
            args.dial.congestion.is_some(),
            "--congestion is a setting of this host, but this host sends no data in this copy",
        ),
        (
            args.dial.via != ViaArg::Auto,
            "--via is a setting of this host, but this host sends no data in this copy",
        ),
    ])
}

/// Returns whether a path, as typed, is on another host.
fn is_remote(path: &OsStr, args: &PushArgs) -> bool {
    matches!(
        Location::parse(path, start(path, args)),
        Ok(Location::Remote(_))
    )
}

/// Returns how the receiver is started on the host of a path that the user typed. A `zmove://` path always refers to a
/// running daemon, even if the host at the other end is reached over ssh.
fn start(path: &OsStr, args: &PushArgs) -> Start {
    if path.as_bytes().starts_with(b"zmove://") {
        Start::Daemon
    } else {
        dial::start(&args.dial)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};
    use crate::display::prompt::Prompt;

    fn copy(words: &str) -> Result<Copy> {
        let typed = ["zmove", "copy"].into_iter().chain(words.split(' '));
        let Command::Copy(args) = Args::try_parse_from(typed).unwrap().command else {
            panic!("no copy: {words}");
        };
        Copy::new(*args, Arc::new(Prompt))
    }

    #[test]
    fn a_copy_goes_by_where_its_ends_are() {
        assert!(matches!(copy("h:a d"), Ok(Copy::Pull(_))));
        assert!(matches!(copy("a h:d"), Ok(Copy::Push(_))));
        assert!(matches!(copy("a d"), Ok(Copy::Push(_))));
        let Ok(Copy::Between(settings)) = copy("--max-bytes 1KiB h:a :b g:9:d") else {
            panic!("no copy")
        };
        let CopySettings {
            source,
            order,
            bytes_max,
            ..
        } = *settings;
        assert_eq!(
            (source.host.as_str(), order.to.host.as_str(), order.to.port),
            ("h", "g", 9)
        );
        assert_eq!(
            (order.fetch.open.target.as_slice(), bytes_max),
            (&b"d"[..], Some(1024))
        );
        assert_eq!(order.fetch.sources.len(), 2);
    }

    #[test]
    fn the_source_may_be_without_a_daemon_and_the_target_have_one() {
        for words in [
            "alice@h:a zmove://g/d",
            "--ssh h:a zmove://g/d",
            "alice@h:a g:d",
        ] {
            let Ok(Copy::Between(settings)) = copy(words) else {
                panic!("no copy: {words}")
            };
            let CopySettings { source, target, .. } = *settings;
            assert!(source.login.is_some() && target.login.is_none(), "{words}");
        }
    }

    #[test]
    fn what_makes_no_sense_between_such_ends_is_refused() {
        for (words, text) in [
            (
                "--max-bytes 1KiB a h:d",
                "--max-bytes and --max-entries are for",
            ),
            ("h:a b g:d", "'b' is on this host"),
            (
                "h:a g,i:d",
                "'g,i:d': only the target of a push can have several hosts",
            ),
            ("--manifest m h:a g:d", "--manifest cannot be used"),
            ("--proofs m h:a g:d", "--proofs cannot be used"),
            (
                "--congestion bbr h:a g:d",
                "--congestion is a setting of this host",
            ),
        ] {
            let Err(error) = copy(words) else {
                panic!("{words}")
            };
            assert!(error.to_string().contains(text), "{words}: {error}");
        }
    }
}
