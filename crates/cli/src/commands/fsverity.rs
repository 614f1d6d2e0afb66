//! `fsverity`: digests of files as fs-verity of Linux computes them, with the options of `fsverity digest`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use inlock_cipher::Hash;
use inlock_verity::{FileDigest, FileParameters, digest_file};

use crate::args::action::{Action, Arguments, Prepared};
use crate::args::options::Options;
use crate::error::{CliError, Status};
use crate::output::{self, Existing};
use crate::ui::print::print;
use inlock_open::path_text;
use inlock_open::verity::{hex, unhex};

pub(crate) const ACTION: Action = Action {
    name: "fsverity",
    aliases: &[],
    arguments: &["<command>", "<file>", "[<file>...]"],
    options: &[&["hash-alg", "block-size", "salt", "compact", "out-descriptor"]],
    about: "compute or verify the fs-verity digest of files",
    prepare,
};

fn prepare(options: Options, mut arguments: Arguments) -> anyhow::Result<Prepared> {
    let command = arguments.word()?;
    let parameters = parameters(&options)?;
    match command.as_str() {
        "digest" => {
            let files: Vec<PathBuf> = arguments.0.map(PathBuf::from).collect();
            let (compact, descriptor, batch) = (options.compact, options.out_descriptor, options.batch_mode);
            if descriptor.is_some() && files.len() > 1 {
                return Err(CliError::usage("Option --out-descriptor is allowed with one file only."));
            }
            Ok(Prepared::new(move || digest(&files, &parameters, compact, descriptor.as_deref(), batch)))
        }
        "verify" => {
            if options.compact || options.out_descriptor.is_some() {
                return Err(CliError::usage(
                    "Options --compact and --out-descriptor are not allowed with fsverity verify.",
                ));
            }
            if arguments.count() != 2 {
                return Err(CliError::usage("Command fsverity verify takes a file and a digest."));
            }
            let (file, expected) = (arguments.path()?, arguments.word()?);
            let (parameters, expected) = expected_digest(parameters, &options, &expected)?;
            Ok(Prepared::new(move || verify(&file, &parameters, &expected)))
        }
        other => Err(CliError::usage(format!("Command '{other}' is none of digest, verify."))),
    }
}

fn parameters(options: &Options) -> anyhow::Result<FileParameters> {
    let hash = match options.hash_alg.as_deref() {
        None | Some("sha256") => Hash::Sha256,
        Some("sha512") => Hash::Sha512,
        Some(name) => return Err(CliError::usage(format!("Hash algorithm {name} is neither sha256 nor sha512."))),
    };
    let salt = options.salt.as_deref().filter(|text| *text != "-").map(|text| {
        let salt = unhex(text).filter(|salt| salt.len() <= 32);
        salt.ok_or_else(|| CliError::usage("Invalid salt string specified."))
    });
    let block_len = options.block_size.unwrap_or(4096);
    let good = block_len.is_power_of_two() && (512..=512 << 10).contains(&block_len);
    match u32::try_from(block_len) {
        Ok(block_len) if good => Ok(FileParameters { hash, block_len, salt: salt.transpose()?.unwrap_or_default() }),
        _ => Err(CliError::usage("The block size is no power of two from 512 to 524288.")),
    }
}

/// Parses `HASH:DIGEST` or a digest alone.
fn expected_digest(
    parameters: FileParameters,
    options: &Options,
    text: &str,
) -> anyhow::Result<(FileParameters, Vec<u8>)> {
    let (name, digits) = text.split_once(':').unwrap_or((parameters.hash.name(), text));
    let hash = match name {
        "sha256" => Hash::Sha256,
        "sha512" => Hash::Sha512,
        _ => return Err(CliError::usage(format!("Hash algorithm {name} is neither sha256 nor sha512."))),
    };
    if options.hash_alg.is_some() && hash != parameters.hash {
        return Err(CliError::usage("Option --hash-alg is not that of the digest."));
    }
    let digest = unhex(digits).filter(|digest| digest.len() == hash.len());
    let digest = digest.ok_or_else(|| CliError::usage("Invalid digest string specified."))?;
    Ok((FileParameters { hash, ..parameters }, digest))
}

fn compute(file: &PathBuf, parameters: &FileParameters) -> anyhow::Result<FileDigest> {
    let opened = File::open(file).with_context(|| format!("cannot open {}", file.display()));
    digest_file(&mut opened?, parameters).with_context(|| format!("cannot compute the digest of {}", file.display()))
}

fn digest(
    files: &[PathBuf],
    parameters: &FileParameters,
    compact: bool,
    descriptor: Option<&Path>,
    batch: bool,
) -> anyhow::Result<()> {
    for file in files {
        let digest = compute(file, parameters)?;
        if let Some(path) = descriptor {
            output::write(path, &[file], Existing::Replaced { batch }, digest.descriptor.as_ref())?;
        }
        let digits = hex(&digest.digest);
        if compact {
            print(format_args!("{digits}\n"))?;
        } else {
            print(format_args!("{}:{digits} {}\n", parameters.hash.name(), path_text::shown(file)))?;
        }
    }
    Ok(())
}

fn verify(file: &PathBuf, parameters: &FileParameters, expected: &[u8]) -> anyhow::Result<()> {
    if compute(file, parameters)?.digest == expected {
        return Ok(());
    }
    let message = format!("File {} does not have this digest.", file.display());
    let hint = "check block size and salt; otherwise the file was changed".to_owned();
    Err(CliError::Remote(message, Some(hint), Status::Permission).into())
}
