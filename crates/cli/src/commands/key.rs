//! `zmove key`: this identity.

use anyhow::Result;
use zmove_transport::Identity;

use crate::args::{KeyArgs, KeyCommand, KeyNewArgs};
use crate::display::terminal;
use crate::settings;
use crate::value::exit::{Exit, Failure};

/// Runs `zmove key`.
pub(crate) fn run(args: &KeyArgs) -> Result<Exit> {
    let identity = match &args.command {
        KeyCommand::Show => Identity::load_or_create(&settings::home(settings::Role::Client)?)?,
        KeyCommand::New(args) => new(args)?,
    };
    terminal::print(format_args!("{}\n", identity.fingerprint()));
    Ok(Exit::Done)
}

fn new(args: &KeyNewArgs) -> Result<Identity> {
    let home = settings::home(settings::Role::Client)?;
    if !Identity::exists(&home)? {
        return Ok(Identity::load_or_create(&home)?);
    }
    if !args.force {
        let text = format!(
            "there is a key in '{}' already, and whoever knows it would not know another: 'zmove key show' prints it, \
             --force replaces it",
            home.display()
        );
        return Err(Failure(Exit::File, text).into());
    }
    let identity = Identity::replace(&home)?;
    terminal::warn(format_args!("the key before is kept in '{}'", home.join("key.pem.old").display()));
    Ok(identity)
}
