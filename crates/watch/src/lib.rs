//! Which files of a tree are ready to be moved: closed by who wrote them, or unchanged for a while. `zmove submit
//! --watch` is made of this, and knows how to move them.
//!
//! The kernel tells what changes (inotify). Since it may forget, and knows nothing of what other hosts do on a network
//! file system, the tree is walked at intervals too.
//!
//! **Invariant:** a file that is ready is handed out until it has been settled as it was when it was handed out; what
//! has changed since is handed out again.

mod events;
mod ledger;
mod stamp;
mod watch;

pub use ledger::Batch;
pub use watch::{How, State, Terms, Watch};
