//! Prints each kernel's share of the CPU's limit: `share [KERNEL [KEY_BITS [SLICES]]]`.

use inlock_bench::kernels;
use inlock_cipher::CipherSpec;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut plan = kernels::Plan::full(CipherSpec::AES_XTS_PLAIN64)?;
    if let Some(name) = arguments.first().filter(|name| *name != "all") {
        plan.kernels.retain(|kernel| kernel.name() == name);
    }
    if let Some(bits) = arguments.get(1).filter(|bits| *bits != "all") {
        plan.key_bits = vec![bits.parse()?];
    }
    if let Some(turns) = arguments.get(2) {
        plan.slices = turns.parse()?;
    }
    plan.request_sizes = vec![4 << 10, 256 << 10];
    kernels::run(&plan, |row| {
        println!(
            "{:9} AES-{} {} unit {:5} request {:6}  {:6.2} GB/s  limit {:6.2}  share {:.3}",
            row.kernel,
            row.key_bits,
            row.direction.name(),
            row.unit_size,
            row.request_size,
            row.bytes_per_second / 1e9,
            row.limit_bytes_per_second / 1e9,
            row.share_of_limit,
        );
    })?;
    Ok(())
}
