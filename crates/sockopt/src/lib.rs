//! Gets and sets socket options that have no safe wrapper elsewhere.
//!
//! Only `transport` uses this crate. The options are specific to Linux (see tcp(7) and socket(7)). **Invariant:** all
//! unsafe code of this crate is in `sys`, whose functions pass plain integers and bytes.
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
