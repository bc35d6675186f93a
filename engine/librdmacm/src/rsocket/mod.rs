//! rsockets: the calls of sockets, over RDMA.

mod protocol;
mod stream;
