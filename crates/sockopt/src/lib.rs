//! Socket options that have no safe wrapper elsewhere, set and read.
//!
//! Called by `transport` alone. The options are Linux's; see tcp(7) and socket(7). **Invariant:** all unsafe
//! code of this crate is in `sys`, functions that move plain integers and bytes.
//!
//! ```
//! let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let client = std::net::TcpStream::connect(listener.local_addr()?)?;
//! zmove_sockopt::open_receive_window(&client, 4 << 20)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod info;
mod route;
mod sys;
mod window;

pub use info::{TcpInfo, tcp_info};
pub use route::path_mtu;
pub use window::open_receive_window;
