"""vidspec inside other people's programs, a package for each; nothing in vidspec needs one of these.

They may touch ``Captioner``, and what it takes and gives: profiles, clips, records, errors. No model, no decoder.

lmms_eval   a model of LMMs-Eval, the evaluation harness
"""
