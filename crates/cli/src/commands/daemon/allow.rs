//! `zmove allow`: manages the keys that are allowed to connect, and their permissions.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use zmove_daemon::TransferStatus;
use zmove_disk::{OwnPaths, RootGuard};
use zmove_transport::{Access, AuthorizedKeys, Grant};

use crate::args::{AllowArgs, AllowCommand, ConfineArg, ControlArgs, GrantArgs};
use crate::commands::operate;
use crate::commands::serve::check::faults_of_roots;
use crate::commands::serve::config::Config;
use crate::display::terminal;
use crate::settings;
use crate::silent_paths::SilentPaths;
use crate::value::control::{Answer, Removed, Request};
use crate::value::exit::{Exit, usage_error};

/// Runs `zmove allow`.
pub(crate) fn run(args: AllowArgs) -> Result<Exit> {
    let home = settings::home(settings::Role::Daemon)?;
    match (args.command, args.grant) {
        (Some(AllowCommand::List { json }), _) => {
            let keys = AuthorizedKeys::load(&home)?;
            let line = |grant| {
                if json {
                    json_of(grant).to_string()
                } else {
                    sentence(grant)
                }
            };
            keys.grants().iter().map(line).for_each(terminal::say);
            if keys.grants().is_empty() && !json {
                terminal::say("no keys are allowed");
            }
        }
        (
            Some(AllowCommand::Remove {
                key_or_name,
                now,
                control,
            }),
            _,
        ) => {
            let before = AuthorizedKeys::load(&home)?;
            let gone = AuthorizedKeys::remove(&home, &key_or_name)?;
            if gone.is_empty() {
                let text = format!(
                    "no allowed key has the name or fingerprint '{key_or_name}': see 'zmove allow list'"
                );
                return Err(usage_error(text));
            }
            for grant in &gone {
                terminal::say(format_args!(
                    "{} ({}) is no longer allowed",
                    grant.name, grant.holder
                ));
            }
            // Only the earlier list of keys contains the removed key. The guard needs that list to identify symbolic
            // links that the key's holder created.
            let keys = AuthorizedKeys::load(&home)?;
            faults_of_roots(&keys, before.writable_roots(), OwnPaths::default())
                .into_iter()
                .for_each(terminal::warn);
            if now {
                end_transfers(&control, &gone)?;
            }
        }
        (None, Some(args)) => {
            let before = AuthorizedKeys::load(&home)?;
            let grant = AuthorizedKeys::allow(&home, grant(args, &before, &home)?)?;
            terminal::say(sentence(&grant));
            if is_new_to_confined(&grant, &before, &home) {
                terminal::say(
                    "restart a confined daemon (confine in zmove.toml) to give it access to a new root",
                );
            }
        }
        (None, None) => unreachable!("clap demands one of them"),
    }
    Ok(Exit::Done)
}

/// Returns whether a grant has a root that a running daemon cannot access because the daemon confined itself to its
/// earlier roots.
fn is_new_to_confined(grant: &Grant, before: &AuthorizedKeys, home: &Path) -> bool {
    let is_confined =
        Config::read(None, home).is_ok_and(|config| config.confine != ConfineArg::Off);
    let known: Vec<_> = before.grants().iter().flat_map(Grant::every_root).collect();
    let is_known = |root: &PathBuf| known.iter().any(|known| root.starts_with(known));
    is_confined && !grant.every_root().all(is_known)
}

/// Ends the running transfers that use removed keys.
fn end_transfers(control: &ControlArgs, gone: &[Grant]) -> Result<()> {
    let removed = |grant: &Grant| Removed {
        name: grant.name.clone(),
        key: grant.key().map(|key| key.to_string()),
    };
    let request = Request::EndKeys(gone.iter().map(removed).collect());
    let answer = operate::ask(control, &request).context("end its transfers (--now)")?;
    if let Answer::Ended(ended) = answer {
        for TransferStatus { id, name, from, .. } in ended {
            terminal::say(format_args!("stopped {id} of {name} at {from}"));
        }
    }
    Ok(())
}

/// Returns the requested grant. If the arguments name no access and the key is already in the list, the key keeps its
/// access. For example, a user who sets only an expiry date does not want to change the access.
fn grant(args: GrantArgs, before: &AuthorizedKeys, home: &Path) -> Result<Grant> {
    let known = before
        .find(&args.fingerprint)
        .filter(|grant| !grant.roots.is_empty());
    let access = match (args.write, args.read) {
        (false, false) => known.map_or(Access::ReadOnly, |grant| grant.access),
        (false, true) => Access::ReadOnly,
        (true, false) => Access::WriteOnly,
        (true, true) => Access::ReadWrite,
    };
    let roots = absolute(&args.roots)?;
    let read_roots = absolute(&args.read_roots)?;
    let writable = before.writable_roots();
    let every_root = roots.iter().chain(&read_roots).chain(&*writable);
    let silent = SilentPaths::find(every_root, terminal::warn);
    let own = settings::usual_own_paths(home);
    let guard = RootGuard::new(writable, own).without(silent.roots);
    let resolved = |roots: Vec<PathBuf>| {
        let roots = roots.iter().map(|root| resolve(root, &guard));
        roots.collect::<Result<Vec<_>>>()
    };
    let roots = resolved(roots)?;
    let read_roots = resolved(read_roots)?;
    let GrantArgs {
        to,
        set_ids,
        set_owner,
        lead,
        max_rate,
        expires,
        ..
    } = args;
    Ok(Grant {
        read_roots,
        to,
        set_ids,
        set_owner,
        lead,
        max_rate,
        expires,
        ..Grant::new(args.fingerprint, &args.name, roots, access)
    })
}

fn absolute(roots: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let absolute = |root: &PathBuf| {
        std::path::absolute(root).with_context(|| format!("find '{}'", root.display()))
    };
    roots.iter().map(absolute).collect()
}

/// Resolves the symbolic links of a root when the user allows it. A later change of a link must not change the
/// directory that was allowed.
fn resolve(root: &Path, guard: &RootGuard) -> Result<PathBuf> {
    let is_none = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotADirectory;
    match guard.resolve(root) {
        Err(error) if is_none(&error) => Err(usage_error(format!(
            "root '{}' is not a directory: name the directory that the key may use",
            root.display()
        ))),
        resolved => resolved.with_context(|| format!("receiver: open root '{}'", root.display())),
    }
}

fn sentence(grant: &Grant) -> String {
    let may = match grant.access {
        Access::ReadOnly => "read",
        Access::WriteOnly => "write",
        Access::ReadWrite => "read and write",
    };
    let rights = [(may, &grant.roots), ("read", &grant.read_roots)];
    let rights = rights
        .into_iter()
        .filter(|(_, roots)| !roots.is_empty())
        .map(|(may, roots)| {
            let roots: Vec<_> = roots
                .iter()
                .map(|root| root.display().to_string())
                .collect();
            format!("{may} below {}", roots.join(", "))
        });
    let rights = rights.collect::<Vec<_>>().join(" and ");
    let mut text = format!("{} ({}) may {rights}", grant.name, grant.holder);
    if !grant.to.is_empty() {
        text += &format!(", and have files sent to {}", grant.to.join(", "));
    }
    if grant.set_ids {
        text += ", and set setuid and setgid bits";
    }
    if grant.set_owner {
        text += ", and set owners, devices and capabilities";
    }
    if grant.lead {
        text += ", and lead jobs of several receivers";
    }
    if let Some(rate) = grant.max_rate {
        text += &format!(", at up to {rate}/s");
    }
    if let Some(expires) = grant.expires {
        let has_come = expires.has_come(SystemTime::now());
        text += &format!(
            ", {} {expires}",
            if has_come { "expired at" } else { "until" }
        );
    }
    text
}

fn json_of(grant: &Grant) -> Value {
    let [roots, read_roots] = [&grant.roots, &grant.read_roots].map(|roots| {
        roots
            .iter()
            .map(|root| root.to_string_lossy())
            .collect::<Vec<_>>()
    });
    json!({
        "key": grant.key().map(|key| key.to_string()),
        "holder": grant.holder.to_string(),
        "name": grant.name,
        "roots": roots,
        "write": grant.access.writes(),
        "read": grant.access.reads() && !grant.roots.is_empty(),
        "read_roots": read_roots,
        "to": grant.to,
        "set_ids": grant.set_ids,
        "set_owner": grant.set_owner,
        "lead": grant.lead,
        "max_bytes_per_second": grant.max_rate.map(|rate| rate.bytes_per_second()),
        "expires": grant.expires.map(|expires| expires.to_string()),
        "expired": grant.expires.is_some_and(|expires| expires.has_come(SystemTime::now())),
    })
}
