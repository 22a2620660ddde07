//! `zmove key`: shows or creates the key of this identity.

use std::path::Path;

use anyhow::Result;
use zmove_transport::Identity;

use crate::args::KeyCommand;
use crate::display::terminal;
use crate::ownership::{self, Control};
use crate::settings;
use crate::value::exit::{Exit, failure};

/// Runs `zmove key`.
pub(crate) fn run(command: &KeyCommand) -> Result<Exit> {
    let state = settings::state(&settings::home(settings::Role::Daemon)?);
    let home = if command.is_of_daemon() {
        state.clone()
    } else {
        settings::home(settings::Role::Client)?
    };
    let identity = match command {
        KeyCommand::New { force: false } if Identity::exists(&home)? => return Err(kept(&home)),
        KeyCommand::New { force: true } if Identity::exists(&home)? => {
            let identity = Identity::replace(&home)?;
            terminal::warn(format_args!(
                "the previous key is kept in '{}'",
                home.join("key.pem.old").display()
            ));
            identity
        }
        KeyCommand::Show { .. } | KeyCommand::New { .. } => Identity::load_or_create(&home)?,
    };
    terminal::print(format_args!("{}\n", identity.fingerprint()));
    if state != home {
        hint_at_daemon(&state)?;
    }
    Ok(Exit::Done)
}

/// Prints a hint if the daemon of this host has a different key.
fn hint_at_daemon(state: &Path) -> Result<()> {
    if ownership::is_root() && Control::of(state)? != Control::Root {
        if state.is_dir() {
            terminal::warn(
                "this is the key with which you send; 'zmove key show --daemon' prints the key of this host's daemon",
            );
        }
    } else if Identity::exists(state)? {
        let key = Identity::load_or_create(state)?.fingerprint();
        terminal::warn(format_args!(
            "this is the key with which you send; this host's daemon has the key {key}, in '{}'",
            state.display()
        ));
    }
    Ok(())
}

fn kept(home: &Path) -> anyhow::Error {
    let text = format!(
        "'{}' already has a key, and hosts that know it would not recognize a new one: 'zmove key show' prints it, \
         --force replaces it",
        home.display()
    );
    failure(Exit::File, text)
}
