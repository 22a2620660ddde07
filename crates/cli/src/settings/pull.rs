//! The settings of a pull. A pull has the settings of a push in the other direction. The sources are on the other host,
//! so the selection is sent to that host.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use anyhow::{Context, Result};
use zmove_engine::{Confirm, DialSettings, Location, Remote, RemoteSources, Start};
use zmove_scan::{FileSystems, Separator};
use zmove_types::Escaped;
use zmove_wire::limits::{
    FETCH_LIST_BYTES_MAX, FETCH_MAPPINGS_MAX, FETCH_SOURCES_MAX, SELECTION_RULE_BYTES_MAX,
    SELECTION_RULES_MAX,
};
use zmove_wire::{
    Extensions, Extraneous, Fetch, LaneOrder, ListOrder, Open, OwnerOrder, SourcePath,
};

use super::mistyped_paths::refuse_user_without_colon;
use super::push::{dial_settings, open_of, refuse_contradictions, removal_order, zeros};
use super::replacement_policy::{are_within_limits, replacement_policy, rule_texts};
use super::{dial, keeping};
use crate::args::PushArgs;
use crate::display::trace;
use crate::value::exit::usage_error;

/// The settings of a pull.
#[derive(Debug)]
pub(crate) struct PullSettings {
    /// The host of the sources, with the path of the first source.
    pub(crate) remote: Remote,
    pub(crate) dial: DialSettings,
    pub(crate) fetch: Fetch,
    pub(crate) list: Option<Arc<[u8]>>,
    pub(crate) sources: RemoteSources,
    /// The options as typed.
    pub(crate) args: PushArgs,
}

impl PullSettings {
    /// Converts the options. `ask` confirms the key of an unknown host.
    ///
    /// # Errors
    /// Returns an error if options contradict each other or one has an invalid value.
    pub(crate) fn new(args: PushArgs, ask: Arc<dyn Confirm>) -> Result<Self> {
        let (target, sources) = args.paths.split_last().expect("two are demanded");
        let start = dial::start(&args.dial);
        let target = match Location::parse(target, start)? {
            Location::Local(path) => {
                refuse_user_without_colon(&path)?;
                path
            }
            Location::Remote(_) => {
                return Err(usage_error(format!(
                    "'{}' is on another host: the target of a pull must be a local directory (for a name with a colon \
                     write './NAME')",
                    Escaped::path(target)
                )));
            }
        };
        let (remote, paths) = one_host(sources, start)?;
        let host = Location::Remote(remote.clone());
        refuse_contradictions(&args, &host, sources)?;
        let dial = dial_settings(&args, &remote, ask)?;
        let list = list(&args)?;
        let separator = match args.selection.separator() {
            Separator::Nul => 0,
            Separator::Newline => b'\n',
        };
        let sources =
            RemoteSources::new(paths.clone(), list.as_deref().map(|list| (list, separator)));
        let fetch = fetch(&args, &host, target.into_vec(), &paths, list.as_deref())?;
        Ok(Self {
            remote,
            dial,
            fetch,
            list: list.map(Into::into),
            sources,
            args,
        })
    }
}

/// Returns the host of all sources, and the paths of the sources on that host. A source that starts with a colon is on
/// the host of the first source.
pub(super) fn one_host(sources: &[OsString], start: Start) -> Result<(Remote, Vec<Vec<u8>>)> {
    let mut first: Option<Remote> = None;
    let mut paths = Vec::new();
    for source in sources {
        let bytes = source.as_bytes();
        if let Some(path) = bytes.strip_prefix(b":").filter(|_| first.is_some()) {
            paths.push(path.to_vec());
            continue;
        }
        let Location::Remote(remote) = Location::parse(source, start)? else {
            return Err(usage_error(format!(
                "'{}' is on this host: the sources of a pull must be on another host (HOST:PATH)",
                Escaped::path(source)
            )));
        };
        refuse_several(source, start)?;
        paths.push(remote.path.clone());
        let same = |first: &Remote| {
            (&first.host, first.port, &first.login) == (&remote.host, remote.port, &remote.login)
        };
        match &first {
            None => first = Some(remote),
            Some(first) if same(first) => {}
            Some(first) => {
                return Err(usage_error(format!(
                    "the sources are on two hosts, {first} and {remote}: pull from each host separately"
                )));
            }
        }
    }
    if paths.len() > FETCH_SOURCES_MAX {
        return Err(usage_error(format!(
            "a pull accepts at most {FETCH_SOURCES_MAX} sources: use a glob"
        )));
    }
    Ok((first.expect("clap demands a source"), paths))
}

/// Refuses a location with several hosts, such as `HOST,HOST:PATH`, if only one host is allowed.
pub(super) fn refuse_several(place: &OsStr, start: Start) -> Result<()> {
    match Location::parse_several(place, start) {
        Ok((_, others)) if !others.is_empty() => Err(usage_error(format!(
            "'{}': only the target of a push can have several hosts: name one host",
            Escaped::path(&place)
        ))),
        _ => Ok(()),
    }
}

/// Reads the complete list of paths.
pub(super) fn list(args: &PushArgs) -> Result<Option<Vec<u8>>> {
    let Some((path, reader)) = args.selection.open_list()? else {
        return Ok(None);
    };
    let mut list = Vec::new();
    let read = reader.take(FETCH_LIST_BYTES_MAX + 1).read_to_end(&mut list);
    read.with_context(|| format!("read --files-from '{}'", Escaped::path(&path)))?;
    if list.len() as u64 > FETCH_LIST_BYTES_MAX {
        return Err(usage_error(format!(
            "--files-from '{}' is larger than {} MiB, the maximum for a pull",
            Escaped::path(&path),
            FETCH_LIST_BYTES_MAX >> 20
        )));
    }
    Ok(Some(list))
}

/// Returns the request to the host at `location` to send the sources to the path `target`.
pub(super) fn fetch(
    args: &PushArgs,
    location: &Location,
    target: Vec<u8>,
    paths: &[Vec<u8>],
    list: Option<&[u8]>,
) -> Result<Fetch> {
    let selection = args.selection.selection()?;
    let rules = rule_texts(selection.as_deref());
    if !are_within_limits(&rules) {
        return Err(usage_error(format!(
            "a pull accepts at most {SELECTION_RULES_MAX} patterns with {} KiB",
            SELECTION_RULE_BYTES_MAX >> 10
        )));
    }
    let owners = keeping::owners(&args.keeping);
    let instead = keeping::fallback_attributes(&args.keeping);
    if owners.users.len().max(owners.groups.len()) > FETCH_MAPPINGS_MAX {
        return Err(usage_error(format!(
            "a pull maps at most {FETCH_MAPPINGS_MAX} users or groups"
        )));
    }
    let open = Open {
        extraneous: if args.delete {
            Extraneous::Goes
        } else {
            Extraneous::Stays
        },
        ..Open::new(target, [0; 16])
    };
    let open = replacement_policy(args, rules.clone(), open_of(args, location, open));
    Ok(Fetch {
        sources: paths.iter().cloned().map(SourcePath).collect(),
        rules,
        sizes: selection.as_ref().map_or((0, u64::MAX), |selection| {
            (*selection.sizes().start(), *selection.sizes().end())
        }),
        one_file_system: args.selection.file_systems() == FileSystems::OfRoot,
        list: list.map(|list| ListOrder {
            nul: args.selection.separator() == Separator::Nul,
            bytes: list.len() as u64,
        }),
        removals: args.delete.then(|| removal_order(args)),
        owners: OwnerOrder {
            numeric: args.keeping.numeric_ids,
            users: owners.users,
            groups: owners.groups,
        },
        zeros: zeros(args),
        umask: instead.umask,
        mtime: instead.mtime,
        rate_max: args.limit().map(|limit| limit.bytes_per_second()),
        lanes: LaneOrder::default(),
        manifest: args.manifest.is_some() || args.proofs.is_some(),
        sample_millis: args
            .trace
            .as_ref()
            .and_then(|_| u32::try_from(trace::INTERVAL.as_millis()).ok()),
        extensions: Extensions::NONE,
        open,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};
    use crate::display::prompt::Prompt;

    fn args(words: &str) -> PushArgs {
        let typed = ["zmove", "pull"].into_iter().chain(words.split(' '));
        let Command::Pull(args) = Args::try_parse_from(typed).unwrap().command else {
            panic!("no pull: {words}");
        };
        *args
    }

    fn settings(words: &str) -> Result<PullSettings> {
        PullSettings::new(args(words), Arc::new(Prompt))
    }

    #[test]
    fn sources_of_one_host_are_taken_together() {
        let settings = settings("h:7:a h:7:b/*.txt :c/ d").unwrap();
        let paths: Vec<_> = settings
            .sources
            .paths()
            .iter()
            .map(|path| String::from_utf8_lossy(path))
            .collect();
        assert_eq!(paths, ["a", "b/*.txt", "c/"]);
        assert_eq!(
            (settings.remote.host.as_str(), settings.remote.port),
            ("h", 7)
        );
        assert_eq!(settings.fetch.open.target, b"d");
    }

    #[test]
    fn what_is_no_pull_is_refused() {
        for (words, text) in [
            ("a d", "'a' is on this host"),
            ("h:a g:b d", "the sources are on two hosts"),
            ("h:a h:9:b d", "the sources are on two hosts"),
            ("h:a g:d", "'g:d' is on another host"),
            (
                "h,g:a d",
                "'h,g:a': only the target of a push can have several hosts",
            ),
            (
                "h:7,g:9:a d",
                "'h:7,g:9:a': only the target of a push can have several hosts",
            ),
            (
                "--delete --files-from f h:a d",
                "--delete cannot be used with --files-from",
            ),
        ] {
            let error = settings(words).unwrap_err();
            assert!(error.to_string().starts_with(text), "{words}: {error}");
        }
    }

    #[test]
    fn rules_travel_in_their_order() {
        let turned_round = settings("--exclude *.o --include !x h:a d");
        let error = turned_round.unwrap_err().to_string();
        assert!(error.contains("!x"), "{error}");
        let fetch = settings("--exclude *.o --include x/ --exclude !y --max-size 1KiB h:a d")
            .unwrap()
            .fetch;
        let rules: Vec<_> = fetch
            .rules
            .iter()
            .map(|rule| (String::from_utf8_lossy(&rule.pattern), rule.includes))
            .collect();
        assert_eq!(
            rules,
            [
                ("*.o".into(), false),
                ("x/".into(), true),
                ("y".into(), true)
            ]
        );
        assert_eq!(fetch.sizes, (0, 1024));
    }
}
