#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# amalgamate.sh - make the drops: pantheon.h and one .c file per part, out of src/.
#
#     tools/amalgamate.sh [--lines] [OUTDIR]     write the drops (default, and start of a relative OUTDIR:
#                                                the repository's root)
#     tools/amalgamate.sh --list DROP            the .c files of one drop, in order
#     tools/amalgamate.sh --drops                the names of the drops that have source
#
# A drop is a pure concatenation: banner, the internal headers its .c files reach (each once, depth
# first), then the .c files in the order below.  Local includes become comments, every .c file gets
# a guard so that two drops fit into one translation unit.  Nothing in the output depends on the
# machine or the day, so "identical to a fresh run" can be checked and merge conflicts are settled
# by running this again.  The lists are explicit because an order found by globbing is an accident;
# tools/check_drops.sh says when a file is missing from them.  --lines adds #line directives.
#
# A drop is not written when it would hold a prototype without a definition.
set -eu
LC_ALL=C
export LC_ALL
cd "$(dirname "$0")/.."

drop_files()
{
    case $1 in
    pantheon.c) cat <<-LIST
	base/pn_err.c base/pn_mem.c base/pn_str.c base/pn_utf8.c base/pn_json.c base/pn_hash.c base/pn_digest.c
	base/pn_thread.c base/pn_thread_none.c base/pn_os_posix.c base/pn_os_linux.c base/pn_os_darwin.c
	base/pn_os_none.c base/pn_os_direct.c base/pn_os_dir.c base/pn_cgroup.c base/pn_host_linux.c base/pn_host_darwin.c base/pn_host_none.c base/pn_host.c
	num/pn_dtype.c num/pn_math.c num/pn_tab_iq.c num/pn_quant.c num/pn_quant_32.c num/pn_quant_4.c
	num/pn_quant_k.c num/pn_quant_kenc.c num/pn_quant_iq.c
	cpu/pn_cpu_unpack.c cpu/pn_cpu_ref.c cpu/pn_cpu_recur.c cpu/pn_cpu_x86.c cpu/pn_cpu_sse41.c cpu/pn_cpu_avx2_unpack.c cpu/pn_cpu_avx2_panel.c
	cpu/pn_cpu_avx2_ops.c cpu/pn_cpu_avx2_kv.c cpu/pn_cpu_avx2_attn.c cpu/pn_cpu_avx2_float.c cpu/pn_cpu_avx2_grid.c cpu/pn_cpu_avx2.c cpu/pn_cpu_avx512.c
	cpu/pn_cpu_avx512vnni.c cpu/pn_cpu_dotprod.c cpu/pn_cpu_neon.c cpu/pn_cpu_neon_float.c
	cpu/pn_cpu_neon_ops.c cpu/pn_cpu_neon_kv.c cpu/pn_cpu_neon_attn.c cpu/pn_cpu_neon_unpack.c cpu/pn_cpu.c
	format/pn_source.c format/pn_gguf.c format/pn_gguf_write.c format/pn_safetensors.c format/pn_safetensors_index.c format/pn_safetensors_write.c
	format/pn_zip.c format/pn_pickle.c format/pn_pth.c format/pn_pth_stream.c
	format/pn_hf_config.c format/pn_hf_names.c format/pn_hf_quant.c format/pn_packed.c format/pn_hf_bind.c format/pn_hf_dir.c format/pn_weights.c
	text/pn_tab_unicode.c text/pn_unicode.c text/pn_tab_norm.c text/pn_norm.c text/pn_lex.c text/pn_pattern_set.c text/pn_pattern_read.c text/pn_pattern.c
	text/pn_pretok_rules.c text/pn_pretok.c text/pn_cuts.c
	text/pn_merge.c text/pn_bpe.c text/pn_spm.c text/pn_unigram.c text/pn_wordpiece.c text/pn_rwkv_trie.c
	text/pn_rules.c text/pn_special.c text/pn_vocab_roles.c text/pn_vocab.c text/pn_detok.c
	text/pn_hf_vocab.c text/pn_hf_tokenizer.c text/pn_hf_pipeline.c text/pn_hf_spm.c text/pn_hf_special.c text/pn_hf_gguf.c
	text/pn_chat.c
	text/pn_tpl_value.c text/pn_tpl_print.c text/pn_tpl_lex.c text/pn_tpl_parse.c text/pn_tpl_methods.c
	text/pn_tpl_filters.c text/pn_tpl_eval.c text/pn_template.c text/pn_chat_norm.c
	text/pn_out_detect.c text/pn_out_value.c text/pn_out_json.c text/pn_out_named.c text/pn_out_xml.c
	text/pn_out_nested.c text/pn_out_python.c text/pn_out_harmony.c text/pn_toolcall.c
	text/pn_respell.c
	plan/pn_layout.c plan/pn_plan.c plan/pn_plan_dot.c
	sample/pn_cands.c sample/pn_counts.c sample/pn_dry.c sample/pn_samplers.c sample/pn_sampler.c sample/pn_budget.c
	sample/pn_gir.c sample/pn_gchars.c sample/pn_gcompile.c sample/pn_gmatch.c sample/pn_gproduct.c
	sample/pn_regex.c sample/pn_gbnf.c sample/pn_gmask.c sample/pn_gprint.c sample/pn_grammar.c
	sample/pn_schema_load.c sample/pn_schema_num.c sample/pn_schema_str.c sample/pn_schema_join.c
	sample/pn_schema_obj.c sample/pn_schema_oneof.c sample/pn_schema.c sample/pn_watch.c sample/pn_calls_args.c sample/pn_calls.c
	sample/pn_guide.c
	mem/pn_ledger.c mem/pn_mscript.c mem/pn_msrc.c mem/pn_pressure.c mem/pn_ladder.c
	model/pn_desc.c model/pn_rope.c model/pn_blocks.c model/pn_arch_llama.c model/pn_arch_qwen.c
	model/pn_arch_phi3.c model/pn_arch_gemma.c model/pn_arch_lfm2.c model/pn_arch_list.c
	store/pn_reads.c store/pn_ring.c store/pn_rows.c store/pn_experts.c store/pn_stream.c store/pn_residency.c store/pn_state.c store/pn_kv.c store/pn_prefix.c store/pn_cold_file.c store/pn_cold.c
	device/pn_team.c device/pn_cpu_attn.c device/pn_cpu_ops.c device/pn_device_cpu.c device/pn_device_sim.c
	engine/pn_engine.c engine/pn_govern.c engine/pn_rungs.c engine/pn_smaller.c engine/pn_rungs_kv.c engine/pn_rungs_weights.c engine/pn_lend.c engine/pn_admit.c engine/pn_die.c engine/pn_file.c engine/pn_presets.c engine/pn_retype.c engine/pn_fit.c engine/pn_plan_api.c engine/pn_vocab_join.c engine/pn_vocab_folder.c engine/pn_model.c
	engine/pn_identity.c engine/pn_tier.c engine/pn_park.c engine/pn_cache.c engine/pn_session.c engine/pn_embed.c engine/pn_grammar_api.c engine/pn_constraint.c engine/pn_emit.c engine/pn_sampler_api.c
	engine/pn_generate.c engine/pn_sched_form.c engine/pn_sched.c engine/pn_sched_aside.c engine/pn_gate_text.c engine/pn_gate.c
	engine/pn_text_api.c engine/pn_template_api.c engine/pn_output_api.c engine/pn_replay.c
	engine/pn_conversation.c engine/pn_request.c
	engine/pn_quantize.c engine/pn_convert.c engine/pn_synth.c
	LIST
        ;;
    pantheon_serve.c) cat <<-LIST
	base/pn_err.c base/pn_mem.c base/pn_str.c base/pn_utf8.c base/pn_json.c base/pn_hash.c
	base/pn_thread.c base/pn_thread_none.c
	serve/pn_oai_error.c serve/pn_oai_read.c serve/pn_oai_chat.c serve/pn_oai_completion.c serve/pn_reply.c
	serve/pn_oai_reply.c serve/pn_oai_text_reply.c serve/pn_oai_translate.c serve/pn_anthropic.c serve/pn_anthropic_reply.c
	serve/pn_responses.c serve/pn_responses_reply.c serve/pn_oai_embeddings.c serve/pn_oai_tokens.c serve/pn_metrics.c
	serve/pn_sendq.c serve/pn_http_wire.c serve/pn_http.c serve/pn_http_reply.c serve/pn_sse.c serve/pn_access.c serve/pn_conn.c
	serve/pn_net_posix.c serve/pn_poller_epoll.c serve/pn_poller_poll.c serve/pn_conn_net.c serve/pn_lane.c serve/pn_registry.c serve/pn_replica.c
	serve/pn_ask_begin.c serve/pn_ask_score.c serve/pn_ask_once.c serve/pn_ask.c serve/pn_accept.c serve/pn_page.c serve/pn_memory_page.c serve/pn_relief.c serve/pn_admin.c
	serve/pn_routes.c serve/pn_server.c serve/pn_http_client.c serve/pn_upstream.c serve/pn_affinity.c
	serve/pn_router_up.c serve/pn_router_ask.c serve/pn_router_health.c serve/pn_router_pages.c serve/pn_router.c
	cli/pn_args.c cli/pn_cli.c cli/pn_out.c cli/pn_cmd_bench.c cli/pn_cmd_inspect.c cli/pn_cmd_logits.c
	cli/pn_cmd_make.c cli/pn_cmd_parse.c cli/pn_cmd_render.c cli/pn_cmd_run.c cli/pn_cmd_tokens.c cli/pn_cmd_grammar.c
	cli/pn_serve_config.c cli/pn_cmd_serve.c cli/pn_cmd_router.c cli/pn_main.c
	LIST
        ;;
    *) echo "amalgamate.sh: there is no drop called $1" >&2; return 1 ;;
    esac
}

about()
{
    case $1 in
    pantheon.c) echo "the library: formats, tokenizers, memory, engine, CPU backend" ;;
    pantheon_serve.c) echo "the server; with -DPANTHEON_CLI also the program" ;;
    esac
}

drops=
for drop in pantheon.c pantheon_serve.c; do
    [ -z "$(drop_files $drop)" ] || drops="$drops $drop"
done

lines=0
case ${1-} in
--lines) lines=1; shift ;;
--list) drop_files "${2?a drop}" | tr -s ' \t' '\n\n' | sed '/^$/d'; exit ;;
--drops) printf '%s\n' $drops; exit ;;
-*) echo "usage: $0 [--lines] [OUTDIR] | --list DROP | --drops" >&2; exit 2 ;;
esac
out=${1-.}
mkdir -p "$out"
version=$(sed -n 's/^#define PN_VERSION "\(.*\)"/\1/p' src/pantheon.h)

for drop in $drops; do
    awk -v drop="$drop" -v about="$(about "$drop")" -v version="$version" -v lines=$lines '
    function fail(text) { print "amalgamate.sh: " drop ": " text > "/dev/stderr"; failed = 1 }
    function local(line) { return match(line, /^#[ \t]*include[ \t]*"[^"]*"/) ? substr(line, index(line, "\"") + 1) : "" }
    function reach(path,    line, inc) {            # headers first, the ones they need before them
        while ((got = (getline line < ("src/" path))) > 0) {
            sub(/\r$/, "", line)
            if ((inc = local(line)) == "") continue
            sub(/".*/, "", inc)
            if (inc == "pantheon.h" || inc in seen) continue
            seen[inc] = 1
            reach(inc)
            header[++n] = inc
        }
        if (got < 0) fail("cannot read src/" path)
        close("src/" path)
    }
    function emit(path,    line, inc, guard) {
        print "\n/* ---- Begin " path " ---- */"
        if (path ~ /\.c$/) {
            guard = toupper(path)
            gsub(/[^A-Z0-9]/, "_", guard)
            print "#ifndef PN_DROP_" guard "\n#define PN_DROP_" guard
        }
        if (lines) print "#line 1 \"src/" path "\""
        while ((getline line < ("src/" path)) > 0) {
            inc = local(line)
            if (inc != "" && inc !~ /^pantheon\.h"/) { sub(/".*/, "", inc); line = "/* includes " inc " */" }
            print line
        }
        close("src/" path)
        if (path ~ /\.c$/) print "#endif"
    }
    { for (i = 1; i <= NF; i++) file[++m] = $i }
    END {
        print "/* Generated by tools/amalgamate.sh from src/: do not edit. */"
        print "/*\n * " drop " - Pantheon " version ", " about ".\n *\n * SPDX-License-Identifier: AGPL-3.0-only\n */"
        print "#define PN_AMALGAMATION 1"
        for (i = 1; i <= m; i++) reach(file[i])
        print "#if defined(__clang__)        /* an inline helper of a header may be unused here */"
        print "#pragma clang diagnostic push\n#pragma clang diagnostic ignored \"-Wunused-function\"\n#endif"
        for (i = 1; i <= n; i++) emit(header[i])
        print "#if defined(__clang__)\n#pragma clang diagnostic pop\n#endif"
        for (i = 1; i <= m; i++) emit(file[i])
        exit failed
    }' > "$out/$drop.tmp" <<FILES || { rm -f "$out/$drop.tmp"; exit 1; }
$(drop_files "$drop")
FILES
    # Every PN_INTERNAL name that is declared (ends in a semicolon) must be defined (a brace) too.
    awk -v drop="$drop" '
    /^[^ \t#\/*].*PN_INTERNAL|^PN_INTERNAL/ { text = ""; open = 1 }
    open {
        text = text " " $0
        gsub(/\/\*[^*]*\*\//, "", text)
        if (!match(text, /[;{]/)) next
        defined = substr(text, RSTART, 1) == "{"
        open = 0
        gsub(/PN_[A-Z0-9_]+[ ]*\([^)]*\)/, "", text)
        if (!match(text, /[a-z_][a-z0-9_]*[ ]*\(/)) next
        name = substr(text, RSTART, RLENGTH)
        gsub(/[ (]/, "", name)
        if (defined) have[name] = 1; else if (!(name in want)) { want[name] = 1; order[++n] = name }
    }
    END {
        for (i = 1; i <= n; i++)
            if (!(order[i] in have)) {
                print "amalgamate.sh: " drop ": " order[i] " is declared but not defined in this drop" > "/dev/stderr"
                failed = 1
            }
        exit failed
    }' "$out/$drop.tmp" || { rm -f "$out/$drop.tmp"; exit 1; }
    mv "$out/$drop.tmp" "$out/$drop"
done
cp src/pantheon.h "$out/pantheon.h.tmp"
mv "$out/pantheon.h.tmp" "$out/pantheon.h"
