//! The far end of a transfer over ssh: `zmove receive`, and the helper program `zmove-far` that does nothing else.
//!
//! The helper is for hosts without zmove. The near end sends it there and starts it over ssh, so it is one small static
//! file. **Invariant:** it depends on no file of the host except the programs `getent` and those of the login shell.

mod accounts;
pub mod lane;
pub mod program;
pub mod receive;
pub mod runtime;
mod signals;

pub use accounts::GetentAccounts;
pub use receive::{FarEnd, receive};
pub use signals::EndSignals;
