// One translator a format. Each knows the keys of its format, in tables, and nothing else.
#pragma once

#include "cli/foreign/translation.hpp"

namespace cartan::cli::foreign {

/// DeepSpeed's ds_config.json. Source: DeepSpeed's configuration reference; "auto" is the Hugging Face
/// integration's word for a value that the caller fills in.
void translate_deepspeed(const Json& top, Translation& to);

/// The arguments of Megatron-LM by their names, with underscores or dashes.
void translate_megatron(const Json& top, Translation& to);

/// A cluster's description of a job: parallelism, checkpoint, elastic_restart. Sections and keys named as
/// cartan's own, with underscores for dashes, are taken too.
void translate_cluster(const Json& top, Translation& to);

}  // namespace cartan::cli::foreign
