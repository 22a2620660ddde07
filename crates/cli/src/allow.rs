//! `zmove allow`: lets a sender's key in.

use anyhow::{Context, Result};
use zmove_transport::{Access, AuthorizedKeys, Grant};

use crate::args::AllowArgs;
use crate::exit::{Exit, usage_error};
use crate::settings;
use crate::terminal;

/// Runs `zmove allow`.
pub(crate) fn run(args: AllowArgs) -> Result<Exit> {
    let home = settings::home(settings::Role::Daemon)?;
    let access = if args.write { Access::ReadWrite } else { Access::ReadOnly };
    let mut roots = Vec::with_capacity(args.roots.len());
    for root in args.roots {
        let root = std::path::absolute(&root).with_context(|| format!("find '{}'", root.display()))?;
        // a link is resolved now, by who allows it: what a root means must not change later
        let root =
            root.canonicalize().with_context(|| format!("receiver: open root '{}'", root.display()))?;
        if !root.is_dir() {
            return Err(usage_error(format!("root '{}' is not a directory", root.display())));
        }
        roots.push(root);
    }
    let shown: Vec<_> = roots.iter().map(|root| root.display().to_string()).collect();
    let (fingerprint, name) = (args.fingerprint, args.name);
    AuthorizedKeys::allow(&home, Grant { fingerprint, name: name.clone(), roots, access })?;
    let may = if access == Access::ReadWrite { "write" } else { "read" };
    terminal::print(format_args!("{name} ({fingerprint}) may {may} below {}\n", shown.join(", ")));
    Ok(Exit::Done)
}
