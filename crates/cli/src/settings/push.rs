//! The settings of a push. This module converts all options and reports contradictions between them, except for the
//! pairs that clap refuses.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use anyhow::Result;
use zmove_engine::{
    Confirm, DialSettings, Listener, Location, OverlapCheck, PathCheck, PathMemory, PushJob,
    Remote, Sources, Timeout,
};
use zmove_scan::{ScanConfig, Selection};
use zmove_sender::{RemovalGuard, Removals, SenderConfig};
use zmove_transport::{Fingerprint, TransportChoice};
use zmove_types::{Escaped, FileNumber, MetadataKinds};
use zmove_wire::{
    AfterErrors, Cipher, Compare, Durability, EmptySources, Intent, Open, PreserveOptions, Proof,
    RemovalOrder, Zeros,
};

use super::cluster::Cluster;
use super::mistyped_paths::{refuse_host_without_path, refuse_schemes, refuse_user_without_colon};
use super::replacement_policy::{replacement_policy, rule_texts};
use super::{Role, Storage, dial, home, journals, keeping, walked_batches_max};
use crate::args::{
    CipherArg, DeltaArg, DurabilityArg, KindArg, ProofArg, PushArgs, SparseArg, TransportArg,
    ViaArg,
};
use crate::display::prompt::Prompt;
use crate::value::exit::{first, refuse, usage_error};

/// The settings of a push.
#[derive(Debug)]
pub(crate) struct PushSettings {
    pub(crate) location: Location,
    /// Additional receivers of the same target. The target is on storage that these receivers share with the first
    /// receiver.
    pub(crate) also: Vec<Remote>,
    /// The cluster whose nodes run the push. `None` for a push from this node only.
    pub(crate) cluster: Option<Cluster>,
    /// The settings for connecting to the receiver, or `None` if the target is on this host.
    pub(crate) dial: Option<DialSettings>,
    /// The selection of source entries, or `None` for all entries.
    pub(crate) selection: Option<Arc<Selection>>,
    /// The options as typed.
    pub(crate) args: PushArgs,
}

impl PushSettings {
    /// Converts the options. `ask` confirms the key of an unknown host.
    ///
    /// # Errors
    /// Returns an error if options contradict each other or one has an invalid value.
    pub(crate) fn new(args: PushArgs, ask: Arc<dyn Confirm>) -> Result<Self> {
        let cluster = args.cluster.as_deref().map(Cluster::load).transpose()?;
        Self::of(args, cluster, ask)
    }

    /// Converts the options for a cluster node that takes part in a push that another node leads.
    ///
    /// # Errors
    /// Returns an error under the same conditions as [`new`](Self::new).
    pub(crate) fn of_node(args: PushArgs, cluster: Cluster, ask: Arc<dyn Confirm>) -> Result<Self> {
        Self::of(args, Some(cluster), ask)
    }

    fn of(args: PushArgs, cluster: Option<Cluster>, ask: Arc<dyn Confirm>) -> Result<Self> {
        let (target, sources) = args.paths.split_last().expect("two are demanded");
        let (location, also) = match &cluster {
            Some(cluster) => receivers_of(cluster, target)?,
            None => Location::parse_several(target, dial::start(&args.dial))?,
        };
        if cluster.is_none() {
            refuse_host_without_path(target)?;
            refuse_user_without_colon(target)?;
        }
        refuse_schemes(sources)?;
        refuse_contradictions(&args, &location, sources)?;
        if cluster.is_some() {
            refuse(&[
                (
                    args.selection.reads_files(),
                    "--cluster cannot be used with a selection: the other nodes do not have its files",
                ),
                (
                    keeping::depends_on_accounts(&args.keeping),
                    "--cluster: the nodes may map user names differently: add --numeric-ids (or --chown)",
                ),
            ])?;
        }
        if !also.is_empty() || cluster.is_some() {
            refuse_for_several(&args, cluster.as_ref())?;
            refuse_twice(receivers_in(&location, &also))?;
        }
        let selection = args.selection.selection()?;
        let dial = match &location {
            Location::Local(_) => None,
            Location::Remote(remote) => Some(dial_settings(&args, remote, ask)?),
        };
        Ok(Self {
            location,
            also,
            cluster,
            dial,
            selection,
            args,
        })
    }

    /// Returns the receivers. If the target is on this host, returns none.
    pub(crate) fn receivers(&self) -> impl Iterator<Item = &Remote> {
        receivers_in(&self.location, &self.also)
    }

    /// Returns the settings for connecting to another receiver of the same target.
    ///
    /// # Errors
    /// Returns an error if the stored data about the receiver cannot be read.
    pub(crate) fn dial_to(&self, remote: &Remote) -> Result<DialSettings> {
        dial_settings(&self.args, remote, Arc::new(Prompt))
    }

    /// Examines the sources, and compares them with the target if it is on this host.
    ///
    /// # Errors
    /// Returns an error if no source exists, or if the push would write into its sources or remove them.
    pub(crate) fn examine_sources(&self, listener: &dyn Listener) -> Result<Sources> {
        let Self { args, .. } = self;
        let sources = if args.selection.files_from.is_some() {
            Sources::examine_contents(&args.paths[0], listener)?
        } else {
            Sources::examine(
                &args.paths[..args.paths.len() - 1],
                self.selection.as_deref(),
                listener,
            )?
        };
        if let Location::Local(target) = &self.location
            && args.listed.is_none()
        {
            let overlap = self.overlap(&sources, target);
            overlap.refuse_target_inside()?;
            if let Some(why) = args.delete.then(|| overlap.objection()).flatten() {
                return Err(usage_error(why));
            }
        }
        Ok(sources)
    }

    /// Converts the options to the settings of a sender that reads from `storage`.
    pub(crate) fn sender(&self, storage: &Storage) -> SenderConfig {
        let Self { args, .. } = self;
        SenderConfig {
            file_io: Arc::clone(&storage.file_io),
            direct: storage.direct,
            scan: ScanConfig {
                selection: self.selection.clone(),
                file_systems: args.selection.file_systems(),
                queue_batches_max: walked_batches_max(),
                ..ScanConfig::default()
            },
            owners: keeping::owners(&args.keeping),
            zeros: zeros(args),
            instead: keeping::fallback_attributes(&args.keeping),
            ..SenderConfig::default()
        }
    }

    /// Returns the job of one session. Each call opens the list of paths again.
    ///
    /// # Errors
    /// Returns an error if the list cannot be opened.
    pub(crate) fn job(&self, sources: &Sources) -> Result<PushJob> {
        let Self { args, .. } = self;
        let target = match &self.location {
            Location::Local(path) => path.as_bytes().to_vec(),
            Location::Remote(remote) => remote.path.clone(),
        };
        let list = args.selection.list(|| sources.roots().swap_remove(0))?;
        let job = sources.job(target);
        let open = open_of(args, &self.location, job.open);
        let open = replacement_policy(args, rule_texts(self.selection.as_deref()), open);
        let mirror = args.delete.then(|| self.removals(sources));
        Ok(PushJob {
            open,
            list,
            mirror,
            ..job
        })
    }

    fn overlap(&self, sources: &Sources, target: &OsStr) -> OverlapCheck {
        let file_systems = self.args.selection.file_systems();
        let selection = self.selection.clone();
        OverlapCheck::new(sources.roots(), target.into(), file_systems, selection)
    }

    fn removals(&self, sources: &Sources) -> Removals {
        let guard = match &self.location {
            Location::Local(path) => {
                Some(Arc::new(self.overlap(sources, path)) as Arc<dyn RemovalGuard>)
            }
            Location::Remote(_) => None,
        };
        Removals {
            order: removal_order(&self.args),
            guard,
            own_directories: own_directories(&self.location),
        }
    }

    /// Returns the time for which the push tries to reconnect after its connections were lost.
    pub(crate) fn timeout(&self) -> Timeout {
        if self.args.selection.can_be_read_again() {
            self.args.retry_timeout()
        } else {
            Timeout::NONE
        }
    }
}

/// Adds the options to the opening message. `location` is the host and path at the other end.
pub(super) fn open_of(args: &PushArgs, location: &Location, open: Open) -> Open {
    Open {
        compare: if args.checksum {
            Compare::Checksum
        } else {
            Compare::Quick
        },
        delta: is_delta_worthwhile(args, location),
        durability: durability(args.durability),
        overwrite: args.overwrite(),
        inplace: args.inplace,
        intent: if args.dry_run {
            Intent::Inspect
        } else {
            Intent::Write
        },
        keeping: match args.listed {
            None => keeping::keeping(&args.keeping),
            // A manifest describes only file contents, so no metadata is compared.
            Some(_) => PreserveOptions {
                kinds: MetadataKinds::NONE,
                ..PreserveOptions::LEAST
            },
        },
        verify: args.verify,
        proof: match args.proof {
            ProofArg::Media if !args.dry_run => Proof::Media,
            ProofArg::Media | ProofArg::Wire => Proof::Wire,
        },
        ..open
    }
}

/// Refuses options that contradict each other.
pub(super) fn refuse_contradictions(
    args: &PushArgs,
    location: &Location,
    sources: &[OsString],
) -> Result<()> {
    let is_local = matches!(location, Location::Local(_));
    let has_list = args.selection.files_from.is_some();
    let wants_quic_in_clear =
        args.dial.transport == TransportArg::Quic && args.cipher == CipherArg::None;
    refuse(&[
        (
            args.delete && has_list,
            "--delete cannot be used with --files-from: the list does not show which other entries may be removed",
        ),
        (
            has_list && sources.len() != 1,
            "--files-from needs exactly one SRC: the directory to which its paths are relative",
        ),
        (
            args.update && keeping::fallback_attributes(&args.keeping).mtime.is_some(),
            "--update compares times: it cannot be used if times are not preserved",
        ),
        (
            args.proof == ProofArg::Media && args.durability == DurabilityArg::None,
            "--verify media reads back flushed data: it cannot be used with --durability none",
        ),
        (
            args.limit().is_some() && is_local,
            "--limit applies to connections: it needs a target on another host",
        ),
        (
            wants_quic_in_clear && !is_local,
            "--cipher none needs TCP: QUIC is always encrypted",
        ),
    ])
}

/// Returns the location of the first receiver and the other receivers of a cluster, all with the path `target`.
fn receivers_of(cluster: &Cluster, target: &OsStr) -> Result<(Location, Vec<Remote>)> {
    let path = match Location::parse(target, zmove_engine::Start::Daemon)? {
        Location::Local(path) => path,
        Location::Remote(_) => {
            return Err(usage_error(format!(
                "--cluster: '{}' names a host, but the cluster defines its receivers: write only the path",
                Escaped::path(&target)
            )));
        }
    };
    let mut remotes = cluster
        .receivers
        .iter()
        .map(|receiver| receiver.remote(path.as_bytes()));
    let first = remotes
        .next()
        .ok_or_else(|| usage_error("the cluster has no receivers"))?;
    Ok((Location::Remote(first), remotes.collect()))
}

fn receivers_in<'a>(
    location: &'a Location,
    also: &'a [Remote],
) -> impl Iterator<Item = &'a Remote> {
    let first = match location {
        Location::Local(_) => None,
        Location::Remote(remote) => Some(remote),
    };
    first.into_iter().chain(also)
}

/// Refuses a receiver that is named twice, because it would serve two sessions instead of one.
pub(crate) fn refuse_twice<'a>(receivers: impl Iterator<Item = &'a Remote>) -> Result<()> {
    let mut seen = HashSet::new();
    for receiver in receivers {
        if !seen.insert((receiver.host.to_ascii_lowercase(), receiver.port)) {
            return Err(usage_error(format!(
                "the receiver {receiver} is named twice: name it once"
            )));
        }
    }
    Ok(())
}

/// Refuses two receivers that have the same key, because they are one host with two names.
pub(crate) fn refuse_same_key<'a>(
    receivers: impl Iterator<Item = (&'a Remote, Fingerprint)>,
) -> Result<()> {
    let mut seen = HashMap::new();
    for (receiver, key) in receivers {
        if let Some(other) = seen.insert(key, receiver) {
            return Err(usage_error(format!(
                "{other} and {receiver} have the same key: they are the same receiver"
            )));
        }
    }
    Ok(())
}

/// Refuses options that do not work with several receivers. The receivers are named by the target or by the cluster.
fn refuse_for_several(args: &PushArgs, cluster: Option<&Cluster>) -> Result<()> {
    // If no cluster is given, an ssh location was already refused.
    let of_ssh = first(&[
        (args.dial.ssh, "--ssh"),
        (args.dial.ssh_command.is_some(), "-e"),
        (args.dial.ssh_ports.is_some(), "--ssh-ports"),
        (args.dial.via != ViaArg::Auto, "--via"),
    ]);
    if let Some(what) = of_ssh.filter(|_| cluster.is_some()) {
        return Err(usage_error(format!(
            "--cluster: each receiver is a daemon, so {what} has no effect"
        )));
    }
    let links = args.keeping.hard_links || args.keeping.preserve.contains(&KindArg::Links);
    let refused = [
        // `verify` also sets some of the options below, so it must come first.
        (args.verify, "verify"),
        (links, "to keep hard links (-H)"),
        (args.delete, "--delete"),
        (args.force, "--force"),
        (args.dry_run, "--dry-run"),
        (args.checksum, "--checksum"),
        (args.inplace, "--inplace"),
        (args.selection.files_from.is_some(), "--files-from"),
        (args.manifest.is_some(), "--manifest"),
        (args.proofs.is_some(), "--proofs"),
        (args.trace.is_some(), "--trace"),
        (args.proof == ProofArg::Media, "--verify media"),
        (
            args.durability != DurabilityArg::End,
            "--durability other than 'end'",
        ),
        (args.delta == DeltaArg::Always, "--delta always"),
    ];
    let Some(what) = first(&refused) else {
        return Ok(());
    };
    let how = match cluster {
        None => "with several receivers (HOST,HOST:PATH): name one of them",
        Some(_) => "with a cluster (--cluster, --nodes): push to one of its receivers",
    };
    Err(usage_error(format!("{what} is not possible {how}")))
}

pub(super) fn dial_settings(
    args: &PushArgs,
    remote: &Remote,
    ask: Arc<dyn Confirm>,
) -> Result<DialSettings> {
    let dial = dial::settings(&args.dial, remote, ask)?;
    let mut dial = DialSettings {
        streams: args.streams,
        limit: args.limit(),
        path_check: if args.dry_run {
            PathCheck::First
        } else {
            PathCheck::OnStall
        },
        ..dial
    };
    if args.cipher == CipherArg::None {
        dial.cipher = Cipher::None;
        // QUIC was refused earlier if the user requested it explicitly.
        dial.reach.transport = TransportChoice::Tcp;
    }
    Ok(dial)
}

/// Returns how blocks of zeros that occupy storage at the source are handled.
pub(super) fn zeros(args: &PushArgs) -> Zeros {
    match args.keeping.sparse {
        SparseArg::Zeros => Zeros::MadeHoles,
        SparseArg::Auto | SparseArg::Never => Zeros::Sent,
    }
}

/// Returns the settings for removing entries at the target.
pub(super) fn removal_order(args: &PushArgs) -> RemovalOrder {
    RemovalOrder {
        after_errors: if args.ignore_errors {
            AfterErrors::Remove
        } else {
            AfterErrors::Keep
        },
        entries_max: args.max_delete,
        empty_sources: if args.allow_empty {
            EmptySources::Mirror
        } else {
            EmptySources::Refuse
        },
    }
}

/// If this process is also the receiver, returns the directories of its journals. These directories may be inside a
/// source and must not be sent.
fn own_directories(location: &Location) -> Vec<FileNumber> {
    let journals = match location {
        Location::Local(_) => home(Role::Client).ok().map(|home| journals(&home)),
        Location::Remote(_) => None,
    };
    let number = |stat: Metadata| FileNumber {
        device: stat.dev(),
        inode: stat.ino(),
    };
    journals
        .and_then(|path| path.metadata().ok())
        .map(number)
        .into_iter()
        .collect()
}

/// Returns whether comparing large files with their old versions at the target is worthwhile. The comparison must read
/// each old version.
fn is_delta_worthwhile(args: &PushArgs, location: &Location) -> bool {
    match (args.delta, location) {
        (DeltaArg::Always, _) => true,
        // With `--inplace`, unchanged groups need not be written.
        (DeltaArg::Auto, _) if args.inplace => true,
        (DeltaArg::Never, _) | (DeltaArg::Auto, Location::Local(_)) => false,
        (DeltaArg::Auto, Location::Remote(remote)) => {
            let home = home(Role::Client).ok();
            let rate = home.and_then(|home| PathMemory::of(&home, remote).last_rate());
            rate.is_none_or(|rate| rate < DELTA_RATE_MAX)
        }
    }
}

/// Approximate rate at which one thread reads from busy storage and hashes, in bytes per second.
const DELTA_RATE_MAX: u64 = 600_000_000;

fn durability(arg: DurabilityArg) -> Durability {
    match arg {
        DurabilityArg::None => Durability::None,
        DurabilityArg::End => Durability::End,
        DurabilityArg::File => Durability::File,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};
    use crate::display::prompt::Prompt;
    use crate::value::exit::Exit;

    fn settings(words: &str) -> Result<PushSettings> {
        let typed = ["zmove", "push"].into_iter().chain(words.split(' '));
        let Command::Push(args) = Args::try_parse_from(typed).unwrap().command else {
            panic!("no push: {words}");
        };
        PushSettings::new(*args, Arc::new(Prompt))
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (words, text) in [
            (
                "--delete --files-from f a h:b",
                "--delete cannot be used with --files-from",
            ),
            (
                "--files-from f a b h:c",
                "--files-from needs exactly one SRC",
            ),
            (
                "--verify media --durability none a h:b",
                "--verify media reads back",
            ),
            ("--limit 1Gbit a /b", "--limit applies to connections"),
            (
                "--via ssh --transport quic a h:b",
                "--via ssh cannot be used with --transport quic",
            ),
            (
                "--cipher none --transport quic a h:b",
                "--cipher none needs TCP",
            ),
            (
                "--transport quic --congestion none-such a h:b",
                "--congestion none-such: ",
            ),
            (
                "--ssh --ssh-command= a h:b",
                "--ssh-command: '' is not a command",
            ),
            ("a h:0:b", "'0' is not a valid port"),
            ("a ::1:b", "'::1:b': write an IPv6 address in brackets"),
            ("a h:~/b", "'~/b': a daemon cannot resolve '~'"),
            (
                "a 10.77.0.2",
                "'10.77.0.2' is a host without a path: write '10.77.0.2:PATH'",
            ),
            ("a alice@dtn", "'alice@dtn' is a host without a path"),
            (
                "a 10.77.0.2,g",
                "'10.77.0.2,g' is a host without a path: write '10.77.0.2,g:PATH'",
            ),
            (
                "a h,H:b",
                "the receiver H:5870 is named twice: name it once",
            ),
            (
                "a h:5870,g,h:b",
                "the receiver h:5870 is named twice: name it once",
            ),
            (
                "-H a g,h:b",
                "to keep hard links (-H) is not possible with several receivers",
            ),
            (
                "--preserve links a g,h:b",
                "to keep hard links (-H) is not possible with several receivers",
            ),
        ] {
            let error = settings(words).unwrap_err();
            assert!(error.to_string().starts_with(text), "{words}: {error}");
            assert_eq!(Exit::of(&error), Exit::Usage, "{words}");
        }
    }

    #[test]
    fn a_local_push_dials_nobody() {
        assert!(
            settings("--cipher none --transport quic a /b")
                .unwrap()
                .dial
                .is_none()
        );
        assert!(
            settings("--cipher none a h:b")
                .unwrap()
                .dial
                .unwrap()
                .reach
                .transport
                == TransportChoice::Tcp
        );
    }
    #[test]
    fn options_that_need_ssh_select_it() {
        for (words, needs_ssh) in [
            ("a h:b", false),
            ("--via direct a h:b", false),
            ("--via ssh a h:b", true),
            ("-e ssh a h:b", true),
        ] {
            let Location::Remote(remote) = settings(words).unwrap().location else {
                panic!("no other host: {words}");
            };
            assert_eq!(remote.login.is_some(), needs_ssh, "{words}");
        }
    }
}
